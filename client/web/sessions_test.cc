#include "client/web/sessions.h"

#include <gtest/gtest.h>

namespace milepost::client {
namespace {

const absl::Time kLoginTime = absl::FromUnixSeconds(1'000'000);

TEST(Sessions, StandForTokens) {
  Sessions sessions({});
  const std::string a = sessions.Add("token-a", kLoginTime);
  const std::string b = sessions.Add("token-b", kLoginTime);
  EXPECT_EQ(a.size(), 64u);
  EXPECT_EQ(sessions.Find(a, kLoginTime), "token-a");
  EXPECT_EQ(sessions.Find(b, kLoginTime), "token-b");
  std::string forged = a;
  forged[7] = forged[7] == '0' ? '1' : '0';
  for (const std::string& other : {forged, std::string(), std::string(64, '0'), a + "0"}) {
    EXPECT_EQ(sessions.Find(other, kLoginTime), std::nullopt);
  }
  sessions.Remove(a);
  EXPECT_EQ(sessions.Find(a, kLoginTime), std::nullopt);
  sessions.RemoveToken("token-b");
  EXPECT_EQ(sessions.Find(b, kLoginTime), std::nullopt);
}

TEST(Sessions, EndUnusedAndAtLast) {
  Sessions sessions({.idle = absl::Minutes(10), .longest = absl::Minutes(25)});
  const std::string idle = sessions.Add("t", kLoginTime);
  const std::string used = sessions.Add("t", kLoginTime);
  EXPECT_TRUE(sessions.Find(used, kLoginTime + absl::Minutes(9)).has_value());
  EXPECT_TRUE(sessions.Find(idle, kLoginTime + absl::Minutes(9), /*uses=*/false).has_value());
  EXPECT_FALSE(sessions.Find(idle, kLoginTime + absl::Minutes(10)).has_value());
  EXPECT_TRUE(sessions.Find(used, kLoginTime + absl::Minutes(18)).has_value());
  EXPECT_TRUE(sessions.Find(used, kLoginTime + absl::Minutes(24)).has_value());
  EXPECT_FALSE(sessions.Find(used, kLoginTime + absl::Minutes(25)).has_value());
}

TEST(Sessions, AreBounded) {
  Sessions sessions({.most = 3});
  const std::string first = sessions.Add("t", kLoginTime);
  const std::string second = sessions.Add("t", kLoginTime + absl::Seconds(1));
  sessions.Add("t", kLoginTime + absl::Seconds(2));
  EXPECT_TRUE(sessions.Find(first, kLoginTime + absl::Seconds(3)).has_value());
  sessions.Add("t", kLoginTime + absl::Seconds(4));
  EXPECT_FALSE(sessions.Find(second, kLoginTime + absl::Seconds(5)).has_value());
  EXPECT_TRUE(sessions.Find(first, kLoginTime + absl::Seconds(5)).has_value());
}

TEST(Sessions, OneTokensLoginsEndNobodyElses) {
  Sessions sessions({.most = 10, .most_of_token = 3});
  const std::string other = sessions.Add("other", kLoginTime);
  std::string last;
  for (int i = 1; i <= 50; ++i) last = sessions.Add("flood", kLoginTime + absl::Seconds(i));
  EXPECT_TRUE(sessions.Find(other, kLoginTime + absl::Minutes(2)).has_value());
  EXPECT_TRUE(sessions.Find(last, kLoginTime + absl::Minutes(2)).has_value());
}

}  // namespace
}  // namespace milepost::client
