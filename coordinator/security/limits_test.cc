// The rate limiter and the audit log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/security/audit_log.h"
#include "coordinator/security/rate_limiter.h"

namespace milepost::coordinator {
namespace {

const absl::Time kFirst = absl::FromUnixSeconds(1'000'000);

TEST(RateLimiterTest, ABurstThenTheRate) {
  RateLimiter limiter({.calls_per_second = 10, .burst = 5, .calls_at_once = 100});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(limiter.Begin({"a"}, kFirst)));
  EXPECT_TRUE(limiter.Begin({"b"}, kFirst).ok());
  EXPECT_FALSE(limiter.Begin({"a"}, kFirst + absl::Milliseconds(99)).ok());
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst + absl::Milliseconds(101)).ok());
  EXPECT_FALSE(limiter.Begin({"a"}, kFirst + absl::Milliseconds(102)).ok());
  // A clock that is set back gives nothing, and takes nothing.
  EXPECT_FALSE(limiter.Begin({"a"}, kFirst - absl::Hours(1)).ok());
  int after_a_pause = 0;
  while (limiter.Begin({"a"}, kFirst + absl::Hours(1)).ok()) ++after_a_pause;
  EXPECT_EQ(after_a_pause, 5);
}

TEST(RateLimiterTest, CallsAtOnce) {
  RateLimiter limiter({.calls_per_second = 1000, .burst = 1000, .calls_at_once = 2});
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
  EXPECT_FALSE(limiter.Begin({"a"}, kFirst).ok());
  limiter.End({"a"});
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
}

TEST(RateLimiterTest, CallsOfAllAtOnce) {
  RateLimiter limiter({.calls_at_once = 2, .all_calls_at_once = 3});
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
  EXPECT_TRUE(limiter.Begin({"a"}, kFirst).ok());
  EXPECT_TRUE(limiter.Begin({"b"}, kFirst).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(limiter.Begin({"b"}, kFirst)));
  EXPECT_TRUE(absl::IsResourceExhausted(limiter.Begin({"c"}, kFirst)));
  EXPECT_TRUE(limiter.Begin({.name = "admin", .always = true}, kFirst).ok());
  EXPECT_TRUE(limiter.Begin({.name = "admin", .always = true}, kFirst).ok());
  EXPECT_FALSE(limiter.Begin({.name = "admin", .always = true}, kFirst).ok())
      << "its own limit holds";
  limiter.End({"a"});
  EXPECT_TRUE(limiter.Begin({"c"}, kFirst).ok()) << "workers and admins take nobody's place";
  EXPECT_FALSE(limiter.Begin({"c"}, kFirst).ok());
  for (int i = 0; i < 2; ++i) limiter.End({.name = "admin", .always = true});
  EXPECT_FALSE(limiter.Begin({"c"}, kFirst).ok());
}

TEST(RateLimiter, OneGroupLeavesCallsToTheOthers) {
  RateLimiter limiter({.calls_at_once = 2, .group_calls_at_once = 3, .all_calls_at_once = 5});
  using Groups = std::vector<std::string>;
  const auto begin = [&](const char* name, const Groups& groups, bool always = false) {
    return limiter.Begin({.name = name, .groups = groups, .always = always}, kFirst);
  };
  EXPECT_TRUE(begin("p/a", {"p"}).ok());
  EXPECT_TRUE(begin("p/a", {"p"}).ok());
  EXPECT_TRUE(begin("p/b", {"p"}).ok());
  EXPECT_THAT(begin("p/c", {"p"}).message(), ::testing::HasSubstr("all callers of p together"));
  EXPECT_TRUE(begin("p/admin", {"p"}, true).ok());
  EXPECT_FALSE(begin("p+q/a", {"p", "q"}).ok()) << "it is of p, too";
  EXPECT_TRUE(begin("q/a", {"q"}).ok());
  EXPECT_TRUE(begin("viewer", {}).ok());
  EXPECT_FALSE(begin("viewer", {}).ok()) << "all together have five";
  limiter.End({.name = "p/admin", .groups = {"p"}, .always = true});
  EXPECT_FALSE(begin("p/c", {"p"}).ok());
  limiter.End({.name = "p/b", .groups = {"p"}});
  EXPECT_TRUE(begin("p/c", {"p"}).ok());
}

TEST(RateLimiterTest, ForgetsWhoHasLongBeenSilentButNoOpenCall) {
  RateLimiter limiter({.calls_per_second = 1, .burst = 1, .calls_at_once = 1});
  EXPECT_TRUE(limiter.Begin({"open"}, kFirst).ok());
  for (int i = 0; i < 10'000; ++i) {
    const std::string caller = absl::StrCat("caller", i);
    const absl::Time now = kFirst + absl::Seconds(2 * i);
    EXPECT_TRUE(limiter.Begin({caller}, now).ok());
    limiter.End({caller});
  }
  EXPECT_FALSE(limiter.Begin({"open"}, kFirst + absl::Hours(100)).ok());
}

class AuditLogTest : public ::testing::Test {
 protected:
  AuditLogTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-audit-XXXXXX");
    dir_ = mkdtemp(pattern.data());
  }
  ~AuditLogTest() override { std::filesystem::remove_all(dir_); }

  std::vector<nlohmann::json> Lines(const std::string& name) {
    std::ifstream file(dir_ + "/" + name);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  std::string dir_;
};

TEST_F(AuditLogTest, LinesAreJsonWhateverIsInThem) {
  auto log = AuditLog::Open({.path = dir_ + "/log"});
  ASSERT_TRUE(log.ok());
  (*log)->Write({.time = kFirst,
                 .principal = "tokens/a",
                 .user = "a\n\"b\xff",
                 .resource = std::string(10'000, 'x')});
  const auto lines = Lines("log");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["principal"], "tokens/a");
  EXPECT_EQ(lines[0]["code"], "OK");
  EXPECT_LE(lines[0]["resource"].get<std::string>().size(), 512u);
}

TEST_F(AuditLogTest, IsBoundedAndLosesTheOldestFirst) {
  auto log = AuditLog::Open({.path = dir_ + "/log", .max_bytes = 4000, .keep = 2});
  ASSERT_TRUE(log.ok());
  for (int i = 0; i < 200; ++i) {
    (*log)->Write({.time = kFirst, .principal = absl::StrCat(i)});
  }
  uintmax_t bytes = 0;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    bytes += entry.file_size();
    ++files;
  }
  EXPECT_EQ(files, 3);
  EXPECT_LE(bytes, 3u * 4000);
  EXPECT_EQ(Lines("log").back()["principal"], "199");
  const int last_before = std::stoi(Lines("log.1").back()["principal"].get<std::string>());
  EXPECT_EQ(std::stoi(Lines("log").front()["principal"].get<std::string>()), last_before + 1);
}

TEST_F(AuditLogTest, GoesOnWhereItEnded) {
  for (int i = 0; i < 2; ++i) {
    auto log = AuditLog::Open({.path = dir_ + "/log"});
    ASSERT_TRUE(log.ok());
    (*log)->Write({.time = kFirst});
  }
  EXPECT_EQ(Lines("log").size(), 2u);
}

// One caller's failures leave room for others'.
TEST_F(AuditLogTest, AFloodOfOneCallersFailuresIsCounted) {
  auto log =
      AuditLog::Open({.path = dir_ + "/log", .refusals_per_second = 50, .refusals_per_caller = 2});
  ASSERT_TRUE(log.ok());
  for (int i = 0; i < 100; ++i) {
    (*log)->Write({.time = kFirst, .principal = "a", .code = absl::StatusCode::kInvalidArgument});
  }
  (*log)->Write({.time = kFirst, .principal = "b", .code = absl::StatusCode::kInvalidArgument});
  (*log)->Write({.time = kFirst, .principal = "a"});
  (*log)->Write({.time = kFirst + absl::Seconds(1), .principal = "a"});
  const auto lines = Lines("log");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[2]["principal"], "b");
  EXPECT_EQ(lines[3]["code"], "OK");
  EXPECT_EQ(lines[4]["suppressed"], 98);
}

// What a full disk has cut off is taken back, so that the next line is one.
TEST_F(AuditLogTest, LinesStayWholeOnAFullDisk) {
  auto log = AuditLog::Open({.path = dir_ + "/log"});
  ASSERT_TRUE(log.ok());
  (*log)->Write({.time = kFirst, .principal = "first"});
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit full = {std::filesystem::file_size(dir_ + "/log") + 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  (*log)->Write({.time = kFirst, .principal = "cut off"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (*log)->Write({.time = kFirst, .principal = "last"});
  const auto lines = Lines("log");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["principal"], "last");
}

// Lines go on in the file as it is, up to twice its size.
TEST_F(AuditLogTest, IsBoundedWhereItCannotBeMoved) {
  std::filesystem::create_directories(dir_ + "/log.1/not empty");
  auto log = AuditLog::Open({.path = dir_ + "/log", .max_bytes = 2000, .keep = 1});
  ASSERT_TRUE(log.ok());
  for (int i = 0; i < 200; ++i) (*log)->Write({.time = kFirst, .principal = absl::StrCat(i)});
  EXPECT_GT(std::filesystem::file_size(dir_ + "/log"), 2000u);
  EXPECT_LE(std::filesystem::file_size(dir_ + "/log"), 4000u);
}

TEST_F(AuditLogTest, AFloodOfRefusalsIsCounted) {
  auto log = AuditLog::Open({.path = dir_ + "/log", .refusals_per_second = 3});
  ASSERT_TRUE(log.ok());
  for (int i = 0; i < 100; ++i) {
    (*log)->Write({.time = kFirst, .code = absl::StatusCode::kUnauthenticated});
  }
  (*log)->Write({.time = kFirst, .principal = "changes are never suppressed"});
  (*log)->Write({.time = kFirst + absl::Seconds(1)});
  const auto lines = Lines("log");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[4]["suppressed"], 97);
}

}  // namespace
}  // namespace milepost::coordinator
