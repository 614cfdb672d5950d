#include "detection/error_containment.h"

#include <cxxabi.h>

#include <exception>
#include <new>

#include "detection/user_notifier.h"
#include "base/format.h"

namespace torchnan {

void rethrow_if_user_facing() {
  try {
    throw;
  } catch (const UserFacingException&) {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
  }
}

void count_failure(const DetectionSession& session, std::string_view part) {
  rethrow_if_user_facing();
  count_failure(std::current_exception(), session, part);
}

void count_failure(const std::exception_ptr& error, const DetectionSession& session, std::string_view part) {
  const auto count = [&](const char* what) {
    try {
      session.count_internal_error(part, format_text("{} failed: {}", part, what));
    } catch (const std::bad_alloc&) {
      session.count_internal_error(part, part);
    }
  };
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    count(failure.what());
  } catch (...) {
    count("an exception that is not a std::exception");
  }
}

}  // namespace torchnan
