// A cluster that others can reach: certificates by init-pki, TLS, roles, on real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

using testing::HasSubstr;

class SecureClusterTest : public testing::Test {
 protected:
  ~SecureClusterTest() override {
    if (!HasFailure()) std::filesystem::remove_all(folder_);
  }
  void SetUp() override { cluster_.Start(); }

  struct Ran {
    int exit_code = -1;
    std::string out;
    std::string err;
  };
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The command line, as a user whose home is `home`.
  Ran Milepost(const std::string& home, std::vector<std::string> argv) {
    const std::string base = folder_ + "/cli";
    std::filesystem::remove(base + ".out");
    std::filesystem::remove(base + ".err");
    SpawnOptions options;
    argv.insert(argv.begin(), SiblingBinary("milepost"));
    if (const char* bin = std::getenv("MILEPOST_BIN_DIR")) argv[0] = std::string(bin) + "/milepost";
    options.argv = std::move(argv);
    options.env = {{"HOME", folder_ + "/" + home}, {"XDG_CONFIG_HOME", ""}};
    options.out = Redirect::File(base + ".out");
    options.err = Redirect::File(base + ".err");
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    const auto end = process->Wait(absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(end.ok()) << end.status();
    return {end.ok() ? end->exit_code : -1, TextOf(base + ".out"), TextOf(base + ".err")};
  }
  // A host's worker, of two slots, with these flags too.
  Subprocess JoiningWorker(const std::vector<std::string>& flags) {
    SpawnOptions options;
    options.argv = {SiblingBinary("milepost-worker"),
                    "--coordinator",
                    cluster_.address(),
                    "--data-dir",
                    folder_ + "/joined",
                    "--slots",
                    "2",
                    "--memory-dir",
                    "",
                    "--id",
                    "joined-1"};
    if (const char* bin = std::getenv("MILEPOST_BIN_DIR")) {
      options.argv[0] = std::string(bin) + "/milepost-worker";
    }
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    options.out = Redirect::File(folder_ + "/joined.log");
    options.err = Redirect::File(folder_ + "/joined.log");
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  std::string Pki(const std::string& file) const { return folder_ + "/pki/" + file; }

  const std::string folder_ = MakeFolder("milepost_secure");
  Cluster cluster_{folder_, {.workers = 2, .slots = 1, .lease_seconds = 5, .tls = true}};
};

TEST_F(SecureClusterTest, TrainsChecksPointsAndSurvivesNewCertificates) {
  v1::JobSpec spec = SmallJob(folder_, 150);
  const std::string job = cluster_.Submit(spec);
  cluster_.Await(job, [](const v1::Job& j) { return j.progress().step() >= 5; });
  cluster_.MakePki();  // every certificate anew, while it runs
  cluster_.KillWorker(1);
  cluster_.StartWorker(1);
  cluster_.Await(
      job, [](const v1::Job& j) { return j.attempts() == 2 && !j.latest_checkpoint().empty(); });
  const v1::Job end = cluster_.Await(job, IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  EXPECT_EQ(end.progress().step(), 150);
  EXPECT_FALSE(cluster_.Checkpoints(job).empty());
  EXPECT_FALSE(cluster_.Logs(job).empty());
  EXPECT_EQ(cluster_.StopWorker(0), 0);
  EXPECT_EQ(cluster_.StopCoordinator(), 0);
}

TEST_F(SecureClusterTest, UsersLogInAndAreHeldToTheirRoles) {
  const std::string coordinator = cluster_.address();
  // Nobody without credentials; nothing in plain text.
  Ran ran = Milepost("nobody", {"job", "list", "--coordinator", coordinator});
  EXPECT_NE(ran.exit_code, 0);
  ran = Milepost("admin", {"auth", "login", "--coordinator", coordinator, "--ca",
                           Pki("client/ca.crt"), "--token-file", Pki("client/admin-token")});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ran = Milepost("admin", {"auth", "whoami", "-o", "json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\"ADMIN\""));
  ran = Milepost("admin", {"auth", "token", "create", "--user", "alice", "--role", "submitter",
                           "--project", "research", "--expires", "30d"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  std::ofstream(folder_ + "/alice-token") << ran.out;
  EXPECT_THAT(ran.out, testing::StartsWith("mpt_"));

  ran = Milepost("alice",
                 {"auth", "login", "--coordinator", coordinator, "--ca", Pki("client/ca.crt"),
                  "--token-file", folder_ + "/alice-token", "--project", "research"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::string hers = cluster_.Submit(SmallJob(folder_, 5));  // by the admin, in "default"
  ran = Milepost("alice", {"job", "describe", hers});
  EXPECT_EQ(ran.exit_code, 102) << ran.err;
  ran = Milepost("alice", {"auth", "token", "create", "--user", "bob", "--role", "viewer",
                           "--project", "research"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("needs the role admin"));
  ran = Milepost("alice", {"queue", "create", "big"});
  EXPECT_EQ(ran.exit_code, 1);
  ran = Milepost("admin", {"job", "list", "-o", "name"});
  EXPECT_THAT(ran.out, HasSubstr(hers));
  ran = Milepost("alice", {"job", "list", "-o", "name"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.out, "");

  // A program that the command starts has the user's credentials.
  cluster_.Await(hers, IsTerminal);
  ran = Milepost("admin", {"generate", "--job", hers, "--prompt", "abc", "--tokens", "4",
                           "--temperature", "0"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, testing::StartsWith("abc"));

  // A file that others can read is not used.
  std::filesystem::permissions(folder_ + "/alice/.config/milepost/credentials",
                               std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  ran = Milepost("alice", {"job", "list"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("chmod 600"));
}

TEST_F(SecureClusterTest, ACertificateOfAnotherAuthorityIsSaid) {
  const std::string other = folder_ + "/other";
  SpawnOptions options;
  options.argv = {SiblingBinary("milepost-coordinator"), "init-pki", other, "--worker", "joined-1"};
  if (const char* bin = std::getenv("MILEPOST_BIN_DIR")) {
    options.argv[0] = std::string(bin) + "/milepost-coordinator";
  }
  ASSERT_TRUE(Subprocess::Spawn(std::move(options))->Wait()->success());
  std::filesystem::copy_file(Pki("client/ca.crt"), other + "/workers/joined-1/ca.crt",
                             std::filesystem::copy_options::overwrite_existing);
  Subprocess worker = JoiningWorker({"--tls", other + "/workers/joined-1"});
  const absl::Time end = absl::Now() + absl::Seconds(60);
  const auto said = [&] { return TextOf(folder_ + "/coordinator.log"); };
  const std::string wanted = "a certificate that was shown here is refused";
  while (!absl::StrContains(said(), wanted) && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_THAT(said(), HasSubstr(wanted));
}

TEST_F(SecureClusterTest, AHostJoinsWithATokenAndNeedsItNoMore) {
  Ran ran = Milepost("admin", {"auth", "login", "--coordinator", cluster_.address(), "--ca",
                               Pki("client/ca.crt"), "--token-file", Pki("client/admin-token")});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ran = Milepost("admin", {"worker", "token", "create", "--pool", "cpu", "--name", "joined-*"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, testing::StartsWith("mpj_"));
  EXPECT_THAT(ran.err, HasSubstr("one host may join pool cpu"));
  const std::string token = folder_ + "/join-token";
  std::ofstream(token) << ran.out;
  // The jobs below run on this host alone.
  EXPECT_EQ(cluster_.StopWorker(0), 0);
  EXPECT_EQ(cluster_.StopWorker(1), 0);
  Subprocess worker = JoiningWorker({"--join-token-file", token});
  v1::Job end = cluster_.Await(cluster_.Submit(SmallJob(folder_, 5)), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  ran = Milepost("admin", {"worker", "describe", "joined-1", "-o", "json"});
  EXPECT_THAT(ran.out, HasSubstr("\"pool\": \"cpu\"")) << ran.err;
  ran = Milepost("admin", {"worker", "token", "list"});
  EXPECT_THAT(ran.out, HasSubstr("1/1"));
  ran = Milepost("admin", {"worker", "token", "list", "-o", "name"});
  const std::string name = ran.out.substr(0, ran.out.find('\n'));
  ran = Milepost("admin", {"worker", "token", "revoke", name});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;

  (void)worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(absl::Now() + absl::Seconds(60))->exit_code, 0);
  std::filesystem::remove(token);
  Subprocess again = JoiningWorker({});
  end = cluster_.Await(cluster_.Submit(SmallJob(folder_, 5)), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  (void)again.Signal(SIGTERM);
  EXPECT_EQ(again.Wait(absl::Now() + absl::Seconds(60))->exit_code, 0);
}

}  // namespace
}  // namespace milepost::e2e
