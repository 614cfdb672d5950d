// A log file to which lines are appended.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include <torchnan/export.h>

namespace torchnan {

// Open only while a line is written. A descriptor that stays open for days may become that of another file, after a
// daemon has closed all of them; and the file may have been renamed.
class TORCHNAN_API AppendOnlyFile {
 public:
  // Opens the file, or creates it readable by its owner only. Does not follow a symbolic link, and refuses a pipe,
  // which could block. Throws std::system_error.
  explicit AppendOnlyFile(const std::string& path);
  ~AppendOnlyFile();
  AppendOnlyFile(const AppendOnlyFile&) = delete;
  AppendOnlyFile& operator=(const AppendOnlyFile&) = delete;

  // Appends a line, which ends with a line break: all of it or, if possible, nothing. Never continues a partial line of
  // a killed process. An empty file gets `first` before it, by the same write. Returns the bytes that the file has
  // then. Throws std::system_error.
  off_t append(std::string line, const std::string& first = "");

 private:
  [[noreturn]] void refuse(int error) const;
  bool ends_without_newline() const;
  bool exceeds_limit(size_t bytes) const;
  int write_all(const std::string& line, size_t& written) const;

  const std::string path_;
  const int fd_;
  struct stat opened_{};  // what it was when it was opened
  bool is_regular_ = false;
};

}  // namespace torchnan
