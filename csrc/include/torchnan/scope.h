// Scopes: named locations in C++ code for reports.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Names a location in C++ code, until destruction. Operations that this thread calls meanwhile are reported with the
// file and line of the scope, and its name (if empty, the name of the function). So is their backward pass, unless
// Python called it.
//
//   torchnan::Scope scope("decoder");
//
// Scopes nest. They may be opened with or without a Detector; up to 65,536 different ones are distinguished.
class TORCHNAN_API Scope {
 public:
  explicit Scope(std::string name = "", const std::source_location& where = std::source_location::current());
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  uint32_t outer_;
};

}  // namespace torchnan
