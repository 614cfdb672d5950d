#include <torchnan/detector.h>

#include <stdexcept>

#include "origin/headroom.h"
#include "intercept/session_lifetime.h"
#include "base/format.h"

namespace torchnan {

NonFiniteError::NonFiniteError(Finding finding)
    : std::runtime_error(to_text(finding)), finding_(std::make_shared<const Finding>(std::move(finding))) {}

namespace {

Options valid(Options options) {
  const std::vector<std::string> faults = options.validate();
  if (!faults.empty()) throw std::invalid_argument(join_text(faults, " "));
  return options;
}

}  // namespace

Detector::Detector(Options options) : session_(make_session(valid(std::move(options)))), open_(true) {
  enter_session(session_);
}

Detector::~Detector() {
  try {
    close();
  } catch (...) {
    // findings() keeps the finding; a destructor cannot throw.
  }
}

void Detector::close() {
  if (!open_) return;
  open_ = false;
  leave_session(session_);
  end_session(session_, true);
}

std::vector<Finding> Detector::findings() const { return session_->log().findings(); }
std::string Detector::report() const { return session_->report(); }
Stats Detector::stats() const { return session_->stats(); }
std::vector<Headroom> Detector::headroom() { return drain_headroom(*session_); }
void Detector::mark_step(int64_t k) { session_->mark_step(k); }

void Detector::name_parameter(const std::string& name, const at::Tensor& tensor) {
  session_->name_tensor(name, tensor, false);
}

void Detector::name_buffer(const std::string& name, const at::Tensor& tensor) {
  session_->name_tensor(name, tensor, true);
}

void Detector::add_sink(std::unique_ptr<Sink> sink) { session_->add_sink(std::move(sink)); }

ThreadScope::ThreadScope(const Detector& detector) : session_(detector.session()) { enter_session(session_); }
ThreadScope::~ThreadScope() { leave_session(session_); }

}  // namespace torchnan
