// A file that lines are appended to: of a log.
#pragma once

#include <sys/types.h>

#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Open for as long as a line takes. Lines are rare, and a descriptor that is kept for days may be closed by a program
// that becomes a daemon, and then be a file of the program's own; or lead to a file that somebody has moved away.
class TORCHNAN_API AppendOnlyFile {
 public:
  // Created for its owner only, never through a link; appended to if it is there. Waits for nobody: a pipe is refused.
  // Throws std::system_error.
  explicit AppendOnlyFile(const std::string& path);
  ~AppendOnlyFile();
  AppendOnlyFile(const AppendOnlyFile&) = delete;
  AppendOnlyFile& operator=(const AppendOnlyFile&) = delete;

  // The line, which ends with a line break, as a whole, or nothing of it if that can be had. What a killed process has
  // left of one is not added to. Throws std::system_error.
  void append(std::string line);

 private:
  [[noreturn]] void refuse(int error) const;
  off_t size() const;
  bool ends_without_newline() const;
  bool exceeds_limit(size_t bytes) const;
  int write_all(const std::string& line, size_t& written) const;

  const std::string path_;
  const int fd_;
  bool is_regular_ = false;
};

}  // namespace torchnan
