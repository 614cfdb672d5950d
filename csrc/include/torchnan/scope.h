// Scopes: places of C++ code that reports name.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Names a place in C++ code, until destruction: what this thread calls meanwhile is reported with the file and line of
// the scope, under its name (empty: that of the function), and so is the backward pass of it where no Python is around.
//
//   torchnan::Scope scope("decoder");
//
// Scopes nest. They may be opened with or without a Detector; up to 65,536 different ones are told apart.
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
