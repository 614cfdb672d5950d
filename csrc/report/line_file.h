// A file that lines are appended to: of a log.
#pragma once

#include <sys/types.h>

#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Open for as long as a line takes. Lines are rare, and a descriptor that is kept for days may be closed by a program
// that becomes a daemon, and then be a file of the program's own; or lead to a file that somebody has moved away.
class TORCHNAN_API LineFile {
 public:
  // Created for its owner only, never through a link; appended to if it is there. Waits for nobody: a pipe is refused.
  // Throws std::system_error.
  explicit LineFile(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // The line, which ends with a line break, as a whole, or nothing of it if that can be had. What a killed process has
  // left of one is not added to. Throws std::system_error.
  void append(std::string line);

 private:
  [[noreturn]] void refuse(int error) const;
  off_t size() const;
  bool stops_in_a_line() const;
  bool exceeds_limit(size_t bytes) const;
  int write_all(const std::string& line, size_t& written) const;

  const std::string path_;
  const int fd_;
  bool is_regular_ = false;
};

}  // namespace torchnan
