#include <torchnan/finding.h>
#include <torchnan/sink.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <system_error>

#include <nlohmann/json.hpp>

namespace torchnan {
namespace {

Finding hostile() {
  Finding f;
  f.op = "mine::\"op\"\n\x1b[31m";
  f.module = "layers.0.\xff\xfe";
  f.stack.push_back({"a\\b.py", 3, "f\t"});
  InputSummary input;
  input.name = "self";
  input.tally.min = -std::numeric_limits<double>::infinity();
  input.tally.max = std::numeric_limits<double>::quiet_NaN();
  f.inputs.push_back(input);
  return f;
}

TEST(Json, IsOneStrictLineWhateverTheNamesHold) {
  const std::string line = to_json(hostile());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);  // strict: no NaN, no comments
  EXPECT_EQ(parsed["op"], "mine::\"op\"\n\x1b[31m");
  EXPECT_EQ(parsed["inputs"][0]["min"], "-inf");
  EXPECT_EQ(parsed["inputs"][0]["max"], "nan");
  EXPECT_TRUE(parsed["node"].is_null());
  EXPECT_EQ(parsed["schema"], Finding::kSchemaVersion);
}

class LogFile : public testing::Test {
 protected:
  LogFile() {
    char made[] = "/tmp/torchnan_test_XXXXXX";
    folder = mkdtemp(made);
  }
  ~LogFile() override { std::system(("rm -r " + folder).c_str()); }

  std::string folder;
};

TEST_F(LogFile, IsAppendedToAndReadableByItsOwnerOnly) {
  const std::string path = folder + "/findings.jsonl";
  json_lines_sink(path)->emit(hostile());
  json_lines_sink(path)->emit(hostile());
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) EXPECT_TRUE(nlohmann::json::accept(line));
  EXPECT_EQ(lines, 2);
}

TEST_F(LogFile, IsNotWrittenThroughALink) {
  const std::string link = folder + "/link";
  ASSERT_EQ(symlink((folder + "/elsewhere").c_str(), link.c_str()), 0);
  EXPECT_THROW(json_lines_sink(link), std::system_error);
}

TEST_F(LogFile, ThatCannotBeOpenedSaysWhy) {
  try {
    json_lines_sink(folder + "/no/such/folder");
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/folder"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("give a path that can be written to"), std::string::npos);
  }
}

}  // namespace
}  // namespace torchnan
