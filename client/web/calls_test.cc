#include "client/web/calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"

namespace milepost::client {
namespace {

// Takes one answer.
class Taken {
 public:
  HttpAnswer answer() {
    return HttpAnswer([this](HttpResponse response) {
      response_ = std::move(response);
      done_.Notify();
    });
  }
  const HttpResponse& Wait() {
    done_.WaitForNotification();
    return response_;
  }

 private:
  HttpResponse response_;
  absl::Notification done_;
};

TEST(Calls, ManyWhoAskAtATimeAskOnce) {
  Calls calls({.kept = absl::Hours(1)});
  std::atomic<int> asked = 0;
  absl::Notification go_on;
  const auto make = [&] {
    go_on.WaitForNotification();
    return HttpResponse{.body = std::to_string(++asked)};
  };
  std::vector<Taken> taken(20);
  for (Taken& one : taken) calls.Read("alice", "x", make, one.answer());
  Taken other;
  calls.Read("bob", "x", make, other.answer());
  go_on.Notify();
  std::set<std::string> answers;
  for (Taken& one : taken) answers.insert(one.Wait().body);
  answers.insert(other.Wait().body);
  EXPECT_EQ(answers.size(), 2u);  // alice's and bob's
  EXPECT_EQ(asked, 2);
  Taken later;
  calls.Read("alice", "x", make, later.answer());
  later.Wait();
  EXPECT_EQ(asked, 2);  // it is kept
}

TEST(Calls, ReadsAfterAWriteShowIt) {
  Calls calls({.kept = absl::Hours(1)});
  std::atomic<int> value = 1;
  absl::Notification began;
  absl::Notification go_on;
  Taken before;
  calls.Read(
      "alice", "x",
      [&] {
        const int seen = value;
        began.Notify();
        go_on.WaitForNotification();
        return HttpResponse{.body = std::to_string(seen)};
      },
      before.answer());
  began.WaitForNotification();
  Taken write;
  calls.Write(
      "alice",
      [&] {
        value = 2;
        return HttpResponse{};
      },
      write.answer());
  write.Wait();
  Taken after;
  const auto read = [&] { return HttpResponse{.body = std::to_string(value)}; };
  calls.Read("alice", "x", read, after.answer());  // while the one before is under way
  go_on.Notify();
  EXPECT_EQ(after.Wait().body, "2");
  EXPECT_EQ(before.Wait().body, "1");
  Taken last;
  calls.Read("alice", "x", read, last.answer());
  EXPECT_EQ(last.Wait().body, "2");
}

TEST(Calls, OneWhoAsksMuchLeavesRoomForOthers) {
  Calls calls({.threads = 4, .most_running = 3, .most_waiting = 10});
  absl::Notification go_on;
  std::vector<Taken> taken(8);
  for (Taken& one : taken) {
    calls.Write(
        "alice",
        [&] {
          go_on.WaitForNotification();
          return HttpResponse{};
        },
        one.answer());
  }
  Taken bob;
  calls.Write(
      "bob", [] { return HttpResponse{.body = "bob"}; }, bob.answer());
  EXPECT_EQ(bob.Wait().body, "bob");
  go_on.Notify();
  for (Taken& one : taken) EXPECT_EQ(one.Wait().status, 200);
}

TEST(Calls, TooManyAreRefused) {
  absl::Notification go_on;
  std::vector<Taken> taken(6);
  std::vector<Taken> stopped(2);
  {
    Calls calls({.threads = 1, .most_running = 1, .most_waiting = 2});
    absl::Notification began;
    calls.Write(
        "alice",
        [&] {
          began.Notify();
          go_on.WaitForNotification();
          return HttpResponse{};
        },
        taken[0].answer());
    began.WaitForNotification();
    const auto quick = [] { return HttpResponse{}; };
    calls.Write("alice", quick, stopped[0].answer());
    calls.Read("alice", "x", quick, stopped[1].answer());
    for (int i = 1; i < 6; ++i) calls.Write("alice", quick, taken[i].answer());
    for (int i = 1; i < 6; ++i) EXPECT_EQ(taken[i].Wait().status, 429);
    go_on.Notify();
  }
  EXPECT_EQ(taken[0].Wait().status, 200);
  for (Taken& one : stopped) {
    const int status = one.Wait().status;  // they ran, or the end was quicker
    EXPECT_TRUE(status == 503 || status == 200) << status;
  }
}

}  // namespace
}  // namespace milepost::client
