#include <torchnan/detector.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "intercept/session.h"
#include "origin/headroom.h"

namespace torchnan {

NonFiniteError::NonFiniteError(Finding finding)
    : std::runtime_error(to_text(finding)), finding_(std::make_shared<const Finding>(std::move(finding))) {}

Detector::Detector(Options options) : watch_(make_watch(std::move(options))), open_(true) { enter_watch(watch_); }

Detector::~Detector() {
  try {
    close();
  } catch (...) {
    // findings() has it; a destructor has nowhere to throw to.
  }
}

void Detector::close() {
  if (!open_) return;
  open_ = false;
  leave_watch(watch_);
  end_watch(watch_, true);
}

std::vector<Finding> Detector::findings() const { return watch_->log().findings(); }
std::string Detector::report() const { return watch_->report(); }
Stats Detector::stats() const { return watch_->stats(); }
std::vector<Headroom> Detector::headroom() { return take_headroom(*watch_); }
void Detector::mark_step(int64_t k) { watch_->mark_step(k); }

void Detector::name_parameter(const std::string& name, const at::Tensor& tensor) {
  watch_->name_tensor(name, tensor, false);
}

void Detector::name_buffer(const std::string& name, const at::Tensor& tensor) {
  watch_->name_tensor(name, tensor, true);
}

void Detector::add_sink(std::unique_ptr<Sink> sink) { watch_->add_sink(std::move(sink)); }

ThreadScope::ThreadScope(const Detector& detector) : watch_(detector.watch()) { enter_watch(watch_); }
ThreadScope::~ThreadScope() { leave_watch(watch_); }

}  // namespace torchnan
