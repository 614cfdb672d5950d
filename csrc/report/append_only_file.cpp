#include "report/append_only_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

constexpr time_t kMaxWriteSeconds = 1;

constexpr int kAppend = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

struct stat about(int fd) {
  struct stat file{};
  fstat(fd, &file);
  return file;
}

}  // namespace

AppendOnlyFile::AppendOnlyFile(const std::string& path) : path_(path), fd_(open(path.c_str(), kAppend, 0600)) {
  if (fd_ < 0) refuse(errno);
  opened_ = about(fd_);
  is_regular_ = S_ISREG(opened_.st_mode);
  if (is_regular_ || S_ISCHR(opened_.st_mode)) return;
  close(fd_);
  refuse(ENXIO);
}

AppendOnlyFile::~AppendOnlyFile() { close(fd_); }

off_t AppendOnlyFile::append(std::string line, const std::string& first) {
  const off_t end = opened_.st_size;
  if (end == 0) line.insert(0, first);
  if (ends_without_newline()) line.insert(line.begin(), '\n');
  size_t written = 0;
  const int error = write_all(line, written);
  if (error == 0) return end + static_cast<off_t>(written);
  const bool nobody_came_after = about(fd_).st_size == end + static_cast<off_t>(written);
  if (is_regular_ && written > 0 && nobody_came_after && ftruncate(fd_, end) != 0) {
    // A partial line remains, and the next append will terminate it.
  }
  throw std::system_error(error, std::generic_category(), format_text("log '{}' cannot be written", printable(path_)));
}

void AppendOnlyFile::refuse(int error) const {
  const char* advice = error == ELOOP   ? "give a path that is not a link"
                       : error == ENXIO ? "give the path of a file; the reader of a pipe may keep training waiting"
                                        : "give a path that can be written to";
  throw std::system_error(error, std::generic_category(),
                          format_text("log '{}' cannot be opened ({})", printable(path_), advice));
}

// Whether a killed process has left a partial line, rather than another process being about to complete it.
bool AppendOnlyFile::ends_without_newline() const {
  char last = '\n';
  if (!is_regular_ || opened_.st_size == 0 || pread(fd_, &last, 1, opened_.st_size - 1) != 1 || last == '\n')
    return false;
  return time(nullptr) - opened_.st_mtime > kMaxWriteSeconds;
}

// Writing beyond the limit on file sizes kills a process that does not ignore SIGXFSZ.
bool AppendOnlyFile::exceeds_limit(size_t bytes) const {
  rlimit limit{};
  if (!is_regular_ || getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(about(fd_).st_size) + bytes > limit.rlim_cur;
}

// Returns 0, or the error number if not everything was written.
int AppendOnlyFile::write_all(const std::string& line, size_t& written) const {
  while (written < line.size()) {
    if (exceeds_limit(line.size() - written)) return EFBIG;
    const ssize_t n = write(fd_, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    written += static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace torchnan
