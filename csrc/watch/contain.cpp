#include "watch/contain.h"

#include <cxxabi.h>

#include <exception>
#include <new>

#include <fmt/format.h>

#include "host/messenger.h"

namespace torchnan {

void let_through() {
  try {
    throw;
  } catch (const MeantForProgram&) {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
  }
}

void count_failure(const Watch& watch, std::string_view part) {
  let_through();
  count_failure(std::current_exception(), watch, part);
}

void count_failure(const std::exception_ptr& error, const Watch& watch, std::string_view part) {
  const auto count = [&](const char* what) {
    try {
      watch.count_internal_error(part, fmt::format("{} failed: {}", part, what));
    } catch (const std::bad_alloc&) {
      watch.count_internal_error(part, part);
    }
  };
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    count(failure.what());
  } catch (...) {
    count("an exception that is no std::exception");
  }
}

}  // namespace torchnan
