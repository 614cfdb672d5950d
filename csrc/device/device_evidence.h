// Builds the evidence for an operation on a device with a non-finite result, from the journal.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include "device/event.h"
#include "detection/session.h"
#include "origin/evidence.h"

namespace torchnan {

// An event with non-finite or unintended values.
struct BadEvent {
  NonfiniteKinds kinds;
  std::shared_ptr<const Provenance> provenance;
  bool is_presumed = false;       // no scan has shown it: it was proved from an input that turned out bad, and is gone
  bool expects_infinity = false;  // as its event
};

// An input of an event that holds values of a bad event.
struct BadInput {
  EventInput input;
  BadEvent bad;
};

// Returns the largest magnitude that an event held, as a masked word; nothing if it was not scanned.
using LargestWordOf = c10::function_ref<std::optional<uint64_t>(const Event&)>;

class DeviceEvidence final : public Evidence {
 public:
  DeviceEvidence(const Event& event, c10::ArrayRef<BadInput> bad_inputs, DetectionSession& session,
                 LargestWordOf largest_word_of);

  const OpPlan& plan() const override { return *event_.plan; }
  const Site& site() override { return site_; }
  bool has_all_kinds() const override { return false; }
  c10::ArrayRef<Argument> arguments() const override { return arguments_; }
  NonfiniteKinds constants() const override { return event_.intended; }
  std::optional<ElementAttribution> attribute_elements(NonfiniteKinds) override { return std::nullopt; }
  bool has_own_elements(NonfiniteKinds) override { return false; }  // nothing runs again there
  std::shared_ptr<OriginRecord> new_origin(NonfiniteKinds kinds) override;
  std::shared_ptr<OriginRecord> new_origin_without_arguments(NonfiniteKinds kinds) override {
    return new_origin(kinds);
  }
  void record_first_use(size_t argument, OriginRecord& origin) override;

 private:
  bool is_given_by_host(size_t argument) const { return argument == bad_inputs_.size(); }

  const Event& event_;
  const c10::ArrayRef<BadInput> bad_inputs_;
  DetectionSession& session_;
  const LargestWordOf largest_word_of_;
  const Site site_;
  c10::SmallVector<Argument, 4> arguments_;  // the bad inputs, then the causes on the host
};

// Returns the origin of an event whose values its inputs do not explain: the operation made them, or they came in.
// Counts the values if they still exist; waits for the device.
std::shared_ptr<OriginRecord> device_origin(const Event& event, NonfiniteKinds kinds, DetectionSession& session,
                                            LargestWordOf largest_word_of);

// Returns the name of the module parameter or buffer with this memory; empty if there is none.
std::string owner_name(const Event& event, const DetectionSession& session);

}  // namespace torchnan
