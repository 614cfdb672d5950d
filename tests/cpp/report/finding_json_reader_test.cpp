#include <torchnan/finding.h>

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace torchnan {
namespace {

using Json = nlohmann::ordered_json;

Finding full() {
  Finding f;
  f.level = Level::kNote;
  f.kind = Kind::kInf;
  f.origin = Origin::kForeign;
  f.phase = Phase::kOptimizer;
  f.op = "mine::\"op\"\n\x1b[31m";
  f.overload = "Tensor";
  f.output = 3;
  f.node = "LogBackward0";
  f.module = "";
  f.name = std::string("nul\0l", 5);
  f.constant = true;
  f.collective = "c10d::allreduce_";
  f.stack = {{"a\\b.py", 3, "größe"}, {"", 0, ""}};
  f.step = -1;
  f.rank = 7;
  f.thread = std::numeric_limits<uint64_t>::max();
  f.device = "cuda:1";
  f.dtype = "bfloat16";
  f.shape = {0, 2, std::numeric_limits<int64_t>::max()};
  f.strides = {1, 1, 0};
  f.nan = f.posinf = f.neginf = 5;
  f.first_index = {0, 1, 2};
  f.inputs = {{"self", "float64", {2}, {1, 2, 3, -0.0, 5e-324, 1.7976931348623157e308}, true, "train.py:1"}, {}};
  f.inputs[1].tally.min = -std::numeric_limits<double>::infinity();
  f.inputs[1].tally.max = std::numeric_limits<double>::quiet_NaN();
  f.compiled = {"forward", "net.py", 3, "cpp_fused_log_0", Replay::kFused, "none"};
  f.lineage = {{"aten::mul", "train.py", 4}, {"aten::sum", "", 0}};
  f.lineage_omitted = 412;
  f.harm = {HarmKind::kUnused, "loss", "train.py", 9};
  f.hint = "0/0";
  f.others = {"0.bias", "größe\n"};
  f.others_omitted = 37;
  f.repeats = 2;
  return f;
}

TEST(ReadJson, GivesTheLineAgain) {
  for (const Finding& finding : {Finding(), full()}) {
    const std::string line = to_json(finding);
    EXPECT_EQ(to_json(finding_from_json(line)), line);
    EXPECT_EQ(to_text(finding_from_json(line)), to_text(finding));
  }
}

TEST(ReadJson, KnowsEveryWord) {
  Finding f;
  for (int i = 0; i <= static_cast<int>(Replay::kNone); ++i) {
    f.compiled.emplace().replay = static_cast<Replay>(i);
    EXPECT_EQ(finding_from_json(to_json(f)).compiled->replay, f.compiled->replay);
  }
  for (int i = 0; i <= static_cast<int>(HarmKind::kUnused); ++i) {
    f.harm.kind = static_cast<HarmKind>(i);
    EXPECT_EQ(finding_from_json(to_json(f)).harm.kind, f.harm.kind);
  }
}

std::string refusal(std::string_view line) {
  try {
    finding_from_json(line);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// A whole line with one place changed.
std::string with(const char* pointer, const Json& value) {
  Json json = Json::parse(to_json(full()));
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

TEST(ReadJson, NamesTheFieldItsExpectedTypeAndItsValue) {
  EXPECT_EQ(refusal(with("/level", "fatal")), "level must be one of error, warning, note but is \"fatal\"");
  EXPECT_EQ(refusal(with("/kind", 3)), "kind must be one of nan, inf but is 3");
  EXPECT_EQ(refusal(with("/op", nullptr)), "op must be a string but is null");
  EXPECT_EQ(refusal(with("/module", 1)), "module must be a string or null but is 1");
  EXPECT_EQ(refusal(with("/output", -1)), "output must be a whole number from 0 to 9223372036854775807 but is -1");
  EXPECT_EQ(refusal(with("/nan", uint64_t{1} << 63)),
            "nan must be a whole number from 0 to 9223372036854775807 but is 9223372036854775808");
  EXPECT_EQ(refusal(with("/thread", -1)), "thread must be a whole number from 0 to 18446744073709551615 but is -1");
  EXPECT_EQ(refusal(with("/shape/1", 2.5)), "shape[1] must be a whole number from 0 to 9223372036854775807 but is 2.5");
  EXPECT_EQ(refusal(with("/stack/1/line", "3")),
            "stack[1].line must be a whole number from -9223372036854775808 to 9223372036854775807 but is \"3\"");
  EXPECT_EQ(refusal(with("/stack", Json::object())), "stack must be a list but is {}");
  EXPECT_EQ(refusal(with("/stack/0", 1)), "stack[0] must be an object but is 1");
  EXPECT_EQ(refusal(with("/inputs/0/min", "Infinity")),
            "inputs[0].min must be a number, 'nan', 'inf', '-inf' or null but is \"Infinity\"");
  EXPECT_EQ(refusal(with("/inputs/0/overwritten", 0)), "inputs[0].overwritten must be true or false but is 0");
  EXPECT_EQ(
      refusal(with("/harm/kind", "eval")),
      "harm.kind must be one of none, origin, backward, gradient, parameter, optimizer_state, read, guard, alive, "
      "unused but is \"eval\"");
  EXPECT_EQ(refusal(with("/secret", 1)), "secret is not known");
  EXPECT_EQ(refusal(with("/harm/secret", 1)), "harm.secret is not known");
  EXPECT_EQ(refusal(with("/op", std::vector<int>(99, 7))),
            "op must be a string but is [" + Json(std::vector<int>(40, 7)).dump().substr(1, 79) + "...");
  EXPECT_EQ(refusal("[]"), "a finding must be an object but is []");
  EXPECT_EQ(refusal("{}"), "schema is missing");
}

TEST(ReadJson, RefusesOtherVersionsByNumber) {
  EXPECT_EQ(refusal(R"({"schema":2,"anything":[]})"), "schema is 2, and this torchnan reads 1: update torchnan");
  EXPECT_EQ(refusal(with("/schema", 0)), "schema is 0, and this torchnan reads 1");
}

TEST(ReadJson, RejectsJsonThatIsNotStrict) {
  const std::string line = to_json(full());
  EXPECT_EQ(refusal("{\"schema\":1," + line.substr(1)), "'schema' occurs twice");
  const auto is_no_json = [](const std::string& text) { return refusal(text).starts_with("it is not JSON: "); };
  EXPECT_TRUE(is_no_json(line.substr(0, line.size() - 1)));
  EXPECT_TRUE(is_no_json(line + "x"));
  EXPECT_TRUE(is_no_json(""));
  EXPECT_TRUE(is_no_json(std::string(100, '\0')));
  EXPECT_TRUE(is_no_json("NaN"));
  EXPECT_TRUE(is_no_json("{\"schema\":1e999}"));
  EXPECT_TRUE(is_no_json("\"\xff\""));
  EXPECT_TRUE(is_no_json("\"\\ud800\""));
}

TEST(ReadJson, IsBoundedForAnyLine) {
  EXPECT_EQ(refusal(std::string((1 << 20) + 1, ' ')), "it has 1048577 bytes, and a finding has at most 1048576");
  EXPECT_EQ(refusal(std::string(1 << 20, '[')), "it is nested deeper than 4 levels");
  std::string many = "[";
  for (int i = 0; i < 300000; ++i) many += "{},";
  EXPECT_TRUE(refusal(many + "0]").starts_with("a finding must be an object but is [{},"));  // at once
  EXPECT_LT(refusal("\"" + std::string(1 << 19, 'x') + "\x01").size(), 1000u);
}

TEST(ReadJson, ItsRefusalsAreSafeToShow) {
  for (const std::string& line :
       {with("/level", "\x1b[31m\n\xe2\x80\xae"), with("/\x1b[31m", 1), std::string("\"\x1b")}) {
    const std::string said = refusal(line);
    EXPECT_FALSE(said.empty());
    for (const char c : said)
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f);
  }
}

}  // namespace
}  // namespace torchnan
