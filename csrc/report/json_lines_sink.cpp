// The log file: one line a finding, one write a line, readable after the process was killed.
#include <torchnan/sink.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <fmt/format.h>

#include "report/printable.h"

namespace torchnan {
namespace {

class JsonLinesSink final : public Sink {
 public:
  explicit JsonLinesSink(std::string path) : path_(std::move(path)), pid_(getpid()), fd_(open_file(path_)) {}
  ~JsonLinesSink() override { close(fd_); }
  JsonLinesSink(const JsonLinesSink&) = delete;
  JsonLinesSink& operator=(const JsonLinesSink&) = delete;

  void emit(const Finding& finding) override {
    if (pid_ != getpid()) move_to_own_file();
    const std::string line = to_json(finding) + "\n";
    for (size_t written = 0; written < line.size();) {
      const ssize_t n = write(fd_, line.data() + written, line.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        throw std::system_error(errno, std::generic_category(), fmt::format("log file '{}'", printable(path_)));
      written += static_cast<size_t>(n);
    }
  }

 private:
  // Created for its owner only, never through a link; appended to if it is there. Waits for no reader of a pipe.
  static int open_file(const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd >= 0) return fd;
    const char* advice = errno == ELOOP ? "give a path that is not a link" : "give a path that can be written to";
    throw std::system_error(errno, std::generic_category(),
                            fmt::format("log '{}' cannot be opened ({})", printable(path), advice));
  }

  // After fork(): the parent's file is the parent's.
  void move_to_own_file() {
    const std::string mine = fmt::format("{}.{}", path_, getpid());
    const int fd = open_file(mine);
    close(fd_);
    fd_ = fd;
    path_ = mine;
    pid_ = getpid();
  }

  std::string path_;
  pid_t pid_;
  int fd_;
};

}  // namespace

Sink::~Sink() = default;

std::unique_ptr<Sink> json_lines_sink(const std::string& path) { return std::make_unique<JsonLinesSink>(path); }

}  // namespace torchnan
