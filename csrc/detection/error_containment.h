// Failures of torchnan's own: they end here, and the program goes on.
#pragma once

#include <exception>
#include <string_view>

#include "detection/session.h"

namespace torchnan {

// In a catch block: throws on what is not torchnan's to keep, an exception for user code or the end of
// the thread.
void rethrow_if_user_facing();

// In a catch block: counts what was thrown as a failure of this part of the work, or lets it through.
TORCHNAN_API void count_failure(const DetectionSession& session, std::string_view part);
void count_failure(const std::exception_ptr& error, const DetectionSession& session, std::string_view part);

// Does a part of torchnan's own work. False if it has failed, which has been counted then; throws only what is
// for the program.
template <typename Work>
bool contain(const DetectionSession& session, std::string_view part, Work&& work) {
  try {
    work();
    return true;
  } catch (...) {
    count_failure(session, part);
    return false;
  }
}

}  // namespace torchnan
