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

TEST(Json, IsOneStrictLineForAnyNames) {
  const std::string line = to_json(hostile());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);  // strict: no NaN, no comments
  EXPECT_EQ(parsed["op"], "mine::\"op\"\n\x1b[31m");
  EXPECT_EQ(parsed["inputs"][0]["min"], "-inf");
  EXPECT_EQ(parsed["inputs"][0]["max"], "nan");
  EXPECT_TRUE(parsed["node"].is_null());
  EXPECT_EQ(parsed["schema"], Finding::kSchemaVersion);
}

// A finding in which everything is as long as possible: characters that JSON writes as six, and the longest numbers.
Finding endless(size_t bytes, size_t items) {
  std::string name;
  while (name.size() < bytes) name += "\x01\xe2\x80\xae";
  const std::vector<int64_t> numbers(1000, std::numeric_limits<int64_t>::min());
  Finding f;
  for (std::string* text : {&f.op, &f.overload, &f.node, &f.name, &f.collective, &f.device, &f.dtype, &f.hint,
                            &f.harm.name, &f.harm.file}) {
    *text = name;
  }
  f.module = name;
  f.shape = f.strides = f.first_index = numbers;
  f.stack.assign(items, Frame{name, 1, name});
  f.compiled = {name, name, 1, name, Replay::kNone, name};
  f.lineage.assign(items, LineageStep{name, name, 1});
  f.lineage.back().op = "last";
  InputSummary input;
  input.name = input.dtype = input.constant = name;
  input.shape = numbers;
  input.tally = {1, 2, 3, -1.2345678901234567e-300, 1.2345678901234567e-300, 1.2345678901234567e-300};
  f.inputs.assign(items, input);
  return f;
}

// Fails when to_json() does not shorten.
TEST(Json, IsShorterThan16KiBForAnyNames) {
  constexpr std::pair<size_t, size_t> kLengths[] = {{10, 1000}, {1000, 100}, {1 << 20, 3}};
  for (const auto& [bytes, items] : kLengths) {
    const std::string line = to_json(endless(bytes, items));
    EXPECT_LT(line.size() + 1, 16384u) << bytes;
    const auto parsed = nlohmann::json::parse(line);
    EXPECT_EQ(parsed["lineage"].back()["op"], "last");
    EXPECT_EQ(parsed["lineage"].size() + parsed["lineage_omitted"].get<size_t>(), items);
    EXPECT_GE(parsed["stack"].size(), 2u);
    EXPECT_GE(parsed["inputs"].size(), 2u);
  }
}

TEST(Json, KeepsBothEndsOfALongNameWithAMark) {
  Finding f;
  f.module = "encoder." + std::string(20000, 'x') + ".\xc3\xa4ttention";
  const auto module = nlohmann::json::parse(to_json(f))["module"].get<std::string>();
  EXPECT_EQ(module.rfind("encoder.xxx", 0), 0u);
  EXPECT_NE(module.find("xxx...xxx"), std::string::npos);
  EXPECT_EQ(module.substr(module.size() - 11), ".\xc3\xa4ttention");
}

TEST(Json, LosesNothingOfAnOrdinaryFinding) {
  Finding f;
  f.stack.assign(40, Frame{"/usr/lib/python3/site-packages/models/transformer/modeling.py", 1234, "Attention.forward"});
  EXPECT_EQ(nlohmann::json::parse(to_json(f))["stack"].size(), 40u);
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
