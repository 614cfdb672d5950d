// Contains failures inside torchnan, so that the program continues.
#pragma once

#include <exception>
#include <string_view>

#include "detection/session.h"

namespace torchnan {

// Call in a catch block: rethrows an exception that is meant for user code, and the end of the thread.
void rethrow_if_user_facing();

// Call in a catch block: counts the exception as a failure of this part, or rethrows it if it is meant for user code.
TORCHNAN_API void count_failure(const DetectionSession& session, std::string_view part);
void count_failure(const std::exception_ptr& error, const DetectionSession& session, std::string_view part);

// Runs an internal part of torchnan. Returns false if it failed, and counts the failure; throws only exceptions for
// user code.
template <typename Work>
bool run_contained(const DetectionSession& session, std::string_view part, Work&& work) {
  try {
    work();
    return true;
  } catch (...) {
    count_failure(session, part);
    return false;
  }
}

}  // namespace torchnan
