// Destinations of findings, besides the list of the detector.
#pragma once

#include <memory>
#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// Receives findings. emit() is called on the thread that made the finding, one call at a time. An exception of any kind
// that it throws is counted and warned about once; it never reaches user code.
class TORCHNAN_API Sink {
 public:
  virtual ~Sink();
  virtual void emit(const Finding& finding) = 0;
};

// Returns a sink that appends one line of strict JSON per finding, each in one write. The file is readable by its owner
// only, and open only while a line is written. A forked child writes to "<path>.<pid>". Throws std::system_error if the
// file cannot be opened, or is a pipe, whose reader could block the writer.
TORCHNAN_API std::unique_ptr<Sink> json_lines_sink(const std::string& path);

}  // namespace torchnan
