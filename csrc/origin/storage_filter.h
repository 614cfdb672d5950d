// A set of storages that is queried far more often than it changes; tells which ones it certainly does not hold.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <c10/core/StorageImpl.h>

#include "check/scan/address_hash.h"

namespace torchnan {

// A Bloom filter with one hash. Reading takes no lock; changes are made one at a time. A thread that gets a storage
// from another one must synchronize with it anyway, and so sees the earlier additions.
class StorageFilter {
 public:
  bool may_contain(const c10::StorageImpl* storage) const noexcept {
    const size_t bit = bit_of(storage);
    return (words_[bit / 64].load(std::memory_order_relaxed) >> (bit % 64) & 1) != 0;
  }

  void add(const c10::StorageImpl* storage) noexcept {
    const size_t bit = bit_of(storage);
    std::atomic<uint64_t>& word = words_[bit / 64];
    word.store(word.load(std::memory_order_relaxed) | uint64_t{1} << (bit % 64), std::memory_order_relaxed);
  }

  // Holds exactly the keys of a map. A key that was in the filter and stays is never missing meanwhile.
  template <typename Map>
  void assign_keys(const Map& map) noexcept {
    StorageFilter wanted;
    for (const auto& item : map) wanted.add(item.first);
    for (size_t i = 0; i < words_.size(); ++i) words_[i].store(wanted.words_[i], std::memory_order_relaxed);
  }

 private:
  static constexpr int kBits = 12;

  static size_t bit_of(const c10::StorageImpl* storage) noexcept { return hash_of_address(storage) >> (64 - kBits); }

  std::array<std::atomic<uint64_t>, (size_t{1} << kBits) / 64> words_{};
};

}  // namespace torchnan
