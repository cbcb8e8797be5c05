#include "common/log_format.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

namespace milepost {
namespace {

TEST(LogFormatTest, AMessageIsOneLineWhateverItHolds) {
  std::ostringstream out;
  spdlog::logger logger("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out));
  logger.set_formatter(LogFormatter("%l coordinator: %v"));
  logger.info("{}", std::string("gone\n2026 info coordinator: forged\r\x1b[2K\0\x7f\tend", 45));
  logger.warn("line {}", 2);
  EXPECT_EQ(out.str(),
            "info coordinator: gone\\n2026 info coordinator: forged\\r\\x1b[2K\\x00\\x7f\\tend\n"
            "warning coordinator: line 2\n");
}

TEST(LogFormatTest, TextStaysAndTerminalsAreNotSteered) {
  EXPECT_EQ(EscapeLogMessage("Größe 4 µs, 模型 \xf0\x9f\x9a\x80"),
            "Größe 4 µs, 模型 \xf0\x9f\x9a\x80");
  EXPECT_EQ(EscapeLogMessage("\xc2\x9b"
                             "2J\xe2\x80\xa8"
                             "a\xe2\x80\xa9"),
            "\\u009b2J\\u2028a\\u2029");
  EXPECT_EQ(EscapeLogMessage("\x9b\xff"
                             "a\xe2\x80"),
            "\\x9b\\xffa\\xe2\\x80");
  EXPECT_EQ(EscapeLogMessage(""), "");
}

}  // namespace
}  // namespace milepost
