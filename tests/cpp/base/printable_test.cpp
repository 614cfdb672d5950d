#include "base/printable.h"

#include <gtest/gtest.h>

#include <torchnan/finding.h>

namespace torchnan {
namespace {

TEST(Printable, LeavesPlainTextAlone) {
  EXPECT_EQ(printable("model.layers.17.attn"), "model.layers.17.attn");
  EXPECT_EQ(printable("模型.größe"), "模型.größe");
}

TEST(Printable, EscapesTerminalControlCharacters) {
  EXPECT_EQ(printable("\x1b[31mred\x07\n\r"), "\\x1b[31mred\\x07\\x0a\\x0d");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1m"),
            "\\x9b1m");  // C1
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            "a\\u202eb");  // right-to-left override
  EXPECT_EQ(printable(std::string_view("nul\0l", 5)), "nul\\x00l");
}

TEST(Printable, ShowsBrokenUtf8ByteByByte) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
}

TEST(Storable, IsTheTextItselfWhereItIsUtf8) {
  EXPECT_EQ(to_valid_utf8("\x1b[31m\n\u202e"), "\x1b[31m\n\u202e");
  EXPECT_EQ(to_valid_utf8("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(to_valid_utf8(std::string(1 << 20, 'x'), 10), "xxxxxxxxxx...");
}

TEST(Printable, CutsLongTextWithAMark) {
  const std::string cut = printable(std::string(1 << 20, 'x'), 10);
  EXPECT_EQ(cut, "xxxxxxxxxx...");
}

TEST(Printable, EscapesInvisibleAndBidirectionalCharacters) {
  EXPECT_EQ(printable("a\u00adb\u2060c\ufe0f"), "a\\xadb\\u2060c\ufe0f");
  EXPECT_EQ(printable("\U000e0041\uffff"), "\\U000e0041\\uffff");
}

TEST(Printable, LetsFewMarksStandOnACharacter) {
  EXPECT_EQ(printable("e\u0301\u0302\u0303x\u0301"), "e\u0301\u0302\u0303x\u0301");
  EXPECT_EQ(printable("e\u0301\u0301\u0301\u0301"), "e\u0301\u0301\u0301\\u0301");
  EXPECT_EQ(printable("\u0301"), "\\u0301");  // there is nothing to stand on
}

TEST(Report, HoldsNoControlCharacterOfTheProgram) {
  Finding f;
  f.op = f.node = f.name = f.hint = f.device = f.dtype = "\x1b]0;title\x07";
  f.module = f.op;
  f.stack.push_back({f.op, 1, f.op});
  f.harm = {HarmKind::kGuard, f.op, f.op, 2};
  for (const char c : to_text(f)) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
}

}  // namespace
}  // namespace torchnan
