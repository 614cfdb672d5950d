// The log file: lines of findings, one write per line, so that it is readable after the process was killed.
#include <torchnan/sink.h>

#include <unistd.h>

#include <filesystem>

#include "report/append_only_file.h"
#include "base/format.h"

namespace torchnan {
namespace {

class JsonLinesSink final : public Sink {
 public:
  explicit JsonLinesSink(const std::string& path) : path_(std::filesystem::absolute(path)), pid_(getpid()) {
    const AppendOnlyFile is_writable(path_);
  }

  void emit(const Finding& finding) override { AppendOnlyFile(path_here()).append(to_json(finding) + "\n"); }

  void end(const std::vector<Finding>& found_again, int64_t dropped) override {
    for (const Finding& finding : found_again) emit(finding);
    if (dropped == 0) return;
    const std::string line = format_text("{{\"schema\":{},\"dropped\":{}}}\n", Finding::kSchemaVersion, dropped);
    AppendOnlyFile(path_here()).append(line);
  }

 private:
  // A forked child writes to a separate file.
  std::string path_here() const { return pid_ == getpid() ? path_ : format_text("{}.{}", path_, getpid()); }

  const std::string path_;
  const pid_t pid_;
};

}  // namespace

Sink::~Sink() = default;
void Sink::end(const std::vector<Finding>&, int64_t) {}

std::unique_ptr<Sink> json_lines_sink(const std::string& path) { return std::make_unique<JsonLinesSink>(path); }

}  // namespace torchnan
