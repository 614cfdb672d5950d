// Destinations of findings, besides the list of the detector.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// Receives findings. emit() is called on the thread that made the finding; only one call is made at a time. An
// exception of any kind that a call throws is counted and warned about once; it never reaches user code.
class TORCHNAN_API Sink {
 public:
  virtual ~Sink();
  virtual void emit(const Finding& finding) = 0;
  // Called when a session ends: with the findings that were found again, at least twice as often as when they were last
  // given, and with the number of findings that were not kept since the last call.
  virtual void end(const std::vector<Finding>& found_again, int64_t dropped);
};

// Returns a sink that appends one line of strict JSON per finding, each in one write, and at the end a line for each
// finding that was found again. That line is the earlier one with other counts: `others`, `others_omitted`, `repeats`.
// A line {"schema":1,"dropped":N} says that N findings were not kept. The file is readable by its owner
// only, and open only while a line is written. A forked child writes to "<path>.<pid>". Throws std::system_error if the
// file cannot be opened, or is a pipe, whose reader could block the writer.
TORCHNAN_API std::unique_ptr<Sink> json_lines_sink(const std::string& path);

}  // namespace torchnan
