// Detection as a scope.
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

// Thrown where a non-finite value did harm. what() is the report.
class TORCHNAN_API NonFiniteError : public std::runtime_error {
 public:
  explicit NonFiniteError(Finding finding);
  const Finding& finding() const { return *finding_; }

 private:
  std::shared_ptr<const Finding> finding_;
};

// Watches every operation of the thread that made it, and the backward passes that thread starts, until
// close() or destruction. Scopes nest; the innermost one decides what a finding does.
// Throws std::invalid_argument if the options cannot be used, std::runtime_error if this PyTorch has no
// dispatch key left to session with.
class TORCHNAN_API Detector {
 public:
  explicit Detector(Options options = {});
  ~Detector();  // like close(), but never throws: what it would have thrown is in findings()
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  // Ends detection and judges what is still alive; throws NonFiniteError as any other harm would.
  void close();

  std::vector<Finding> findings() const;
  std::string report() const;
  Stats stats() const;
  // Since it was last asked for; needs the option. What was read comes first, and what is nearest the end of its range.
  std::vector<Headroom> headroom();

  // Training step k begins. Findings carry the number.
  void mark_step(int64_t k);

  // Names tensors for the report ("encoder.weight"); nothing is kept alive.
  void name_parameter(const std::string& name, const at::Tensor& tensor);
  void name_buffer(const std::string& name, const at::Tensor& tensor);

  void add_sink(std::unique_ptr<Sink> sink);

  const std::shared_ptr<DetectionSession>& session() const { return session_; }

 private:
  std::shared_ptr<DetectionSession> session_;
  bool open_ = false;
};

// Lets another thread take part in a detection.
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
