#include "base/own_memory.h"

#include <new>

#include <sys/mman.h>

namespace torchnan {

void* OwnMemory::Mappings::do_allocate(size_t bytes, size_t) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  return mapping;
}

void OwnMemory::Mappings::do_deallocate(void* mapping, size_t bytes, size_t) { munmap(mapping, bytes); }

}  // namespace torchnan
