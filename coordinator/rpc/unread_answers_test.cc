// Clients that call, and do not read what is answered.
#include "coordinator/rpc/raw_link.h"

#include <poll.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/secure_server.h"

namespace milepost::coordinator {
namespace {

// SETTINGS_INITIAL_WINDOW_SIZE = 0: no message may be sent to who says this (RFC 9113, 6.5.2).
const std::string kNoWindow("\0\4\0\0\0\0", 6);

class UnreadAnswersTest : public SecureServerTest {
 protected:
  UnreadAnswersTest() { signal(SIGPIPE, SIG_IGN); }

  std::unique_ptr<RawLink> CallOften(const std::string& token, int times) {
    auto link = std::make_unique<RawLink>(server_->address(), kNoWindow);
    EXPECT_TRUE(link->ok());
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(link->Send(WhoAmICall(token, static_cast<uint32_t>(2 * i + 1))));
    }
    return link;
  }
  void AwaitStatus(const Endpoint& who, grpc::StatusCode wanted) {
    const absl::Time deadline = absl::Now() + kPatience;
    grpc::Status status;
    do {
      status = WhoAmI(who);
    } while (status.error_code() != wanted && absl::Now() < deadline);
    EXPECT_EQ(status.error_code(), wanted) << status.error_message();
  }
  static bool AwaitEndOfOne(const std::vector<std::unique_ptr<RawLink>>& links) {
    std::vector<pollfd> ends;
    for (const auto& link : links) ends.push_back({link->fd(), POLLRDHUP, 0});
    return poll(ends.data(), ends.size(), static_cast<int>(absl::ToInt64Milliseconds(kPatience))) >
           0;
  }
};

TEST_F(UnreadAnswersTest, ACallCountsUntilItsAnswerIsTaken) {
  options_.limits.calls_at_once = 2;
  Start();
  const std::string viewer = MakeToken({{"p", v1::ROLE_VIEWER}}).secret();
  auto link = CallOften(viewer, 2);
  AwaitStatus(User(viewer), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
  link.reset();
  AwaitStatus(User(viewer), grpc::StatusCode::OK);
}

// The server has 1,024 threads.
TEST_F(UnreadAnswersTest, AUserCannotTakeTheThreadsOfOthers) {
  options_.limits.burst = 10'000;
  Start();
  const std::string viewer = MakeToken({{"p", v1::ROLE_VIEWER}}).secret();
  std::vector<std::unique_ptr<RawLink>> links;
  for (int i = 0; i < 5; ++i) links.push_back(CallOften(viewer, 256));
  for (const absl::Time end = absl::Now() + absl::Seconds(1); absl::Now() < end;) {
    const grpc::Status status = WhoAmI(User(AdminToken()));
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_TRUE(AwaitEndOfOne(links)) << "more wait than may";
}

// They fill the buffers between, for which gRPC would wait.
TEST_F(UnreadAnswersTest, TheServerEndsAllTheSame) {
  options_.limits.burst = 10'000;
  options_.limits.calls_at_once = 100;  // as few as may wait: it is not cut
  Start();
  Grants grants;
  for (int i = 0; i < 60; ++i) {
    grants.emplace_back(absl::StrCat("p", i, std::string(50, 'x')), v1::ROLE_VIEWER);
  }
  const std::string viewer = MakeToken(grants).secret();
  RawLink link(server_->address());
  for (uint32_t stream = 1; stream < 4'000; stream += 2) {
    if (!link.Send(WhoAmICall(viewer, stream))) break;
  }
  AwaitStatus(User(viewer), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const absl::Time begin = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - begin, kPatience);
}

}  // namespace
}  // namespace milepost::coordinator
