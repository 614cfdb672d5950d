// Detection in C++: from the construction of a Detector to its destruction.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>
#include <torchnan/headroom.h>
#include <torchnan/options.h>
#include <torchnan/sink.h>
#include <torchnan/stats.h>

namespace torchnan {

class DetectionSession;

// Thrown where a non-finite value does harm. what() is the report.
class TORCHNAN_API NonFiniteError : public std::runtime_error {
 public:
  explicit NonFiniteError(Finding finding);
  const Finding& finding() const { return *finding_; }

 private:
  std::shared_ptr<const Finding> finding_;
};

// Checks every operation of the thread that constructed it, and of the backward passes that this thread starts, until
// close() or destruction. Detectors nest; the innermost one decides what a finding does. The constructor throws
// std::invalid_argument for invalid options, and std::runtime_error if this PyTorch has no free dispatch key.
class TORCHNAN_API Detector {
 public:
  explicit Detector(Options options = {});
  ~Detector();  // like close(), but never throws
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  // Ends detection and reports the non-finite tensors that are still alive; throws NonFiniteError as for any other
  // harm.
  void close();

  std::vector<Finding> findings() const;
  std::string report() const;
  Stats stats() const;
  // Returns the headroom since the last call; needs Options::headroom. Measured values come before bounds, and those
  // closest to the end of their range come first.
  std::vector<Headroom> headroom();

  // Marks the beginning of training step k. Findings carry the number.
  void mark_step(int64_t k);

  // Name tensors for the report ("encoder.weight"). They are not kept alive.
  void name_parameter(const std::string& name, const at::Tensor& tensor);
  void name_buffer(const std::string& name, const at::Tensor& tensor);

  void add_sink(std::unique_ptr<Sink> sink);

  const std::shared_ptr<DetectionSession>& session() const { return session_; }

 private:
  std::shared_ptr<DetectionSession> session_;
  bool open_ = false;
};

// Attaches the current thread to the detection of another thread, until destruction.
class TORCHNAN_API ThreadScope {
 public:
  explicit ThreadScope(const Detector& detector);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  std::shared_ptr<DetectionSession> session_;
};

}  // namespace torchnan
