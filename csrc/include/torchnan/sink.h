// Where findings go besides the detector's own list.
#pragma once

#include <memory>
#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// An endpoint. Called by whichever thread made the finding, one at a time. An exception of any kind that is thrown here
// is counted and warned about once; it never reaches the program that is being watched.
class TORCHNAN_API Sink {
 public:
  virtual ~Sink();
  virtual void emit(const Finding& finding) = 0;
  virtual void flush() {}
};

// One strict-JSON line per finding, appended in one write; the file is created for its owner only, and open for as long
// as a line takes. A forked child writes to "<path>.<pid>". Throws std::system_error if the file cannot be opened, or
// is a pipe, whose reader might keep the program waiting.
TORCHNAN_API std::unique_ptr<Sink> json_lines_sink(const std::string& path);

}  // namespace torchnan
