// A real etcd that talks TLS and asks who one is, with certificates of init-pki.
#include "coordinator/election/etcd_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/election/election.h"
#include "coordinator/security/init_pki.h"
#include "coordinator/standby/standby.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class EtcdTlsTest : public ::testing::Test {
 protected:
  EtcdTlsTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-etcd-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~EtcdTlsTest() override {
    etcd_.reset();
    std::filesystem::remove_all(folder_);
  }
  void SetUp() override {
    if (!EtcdProcess::Available()) GTEST_SKIP() << "there is no etcd (Debian: etcd-server)";
    MakePki("pki");
    EtcdProcess::Options options;
    options.folder = folder_;
    options.tls_dir = folder_ + "/pki/coordinator";
    options.client_tls_dir = folder_ + "/pki/workers/head-a";
    etcd_ = std::make_unique<EtcdProcess>(options);
    ASSERT_EQ(etcd_->Start(), absl::OkStatus());
  }

  void MakePki(const std::string& name) {
    PkiRequest request;
    request.dir = absl::StrCat(folder_, "/", name);
    request.hosts = {"127.0.0.1"};
    request.workers = {"head-a"};
    request.lifetime = absl::Hours(1);
    const auto made = InitPki(request, absl::Now());
    ASSERT_TRUE(made.ok()) << made.status();
  }
  absl::Status Try(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    EtcdClient client({Endpoint(etcd_->address(), credentials)});
    return client.Get("/key", absl::Seconds(1)).status();
  }

  std::string folder_;
  std::unique_ptr<EtcdProcess> etcd_;
};

TEST_F(EtcdTlsTest, OneIsElected) {
  EtcdClient client({etcd_->endpoint()});
  Election a(&client, {.value = "a"}), b(&client, {.value = "b"});
  const auto won = a.Try();
  ASSERT_TRUE(won.ok()) << won.status();
  EXPECT_GT(won->revision, 0);
  EXPECT_EQ(a.Renew(), absl::OkStatus());
  const auto lost = b.Try();
  ASSERT_TRUE(lost.ok()) << lost.status();
  EXPECT_EQ(lost->revision, 0);
  EXPECT_EQ(lost->active, "a");
  a.Resign();
  EXPECT_GT(b.Try()->revision, won->revision);
  b.Resign();
}

TEST_F(EtcdTlsTest, NobodyElseIsListenedTo) {
  EXPECT_FALSE(Try(nullptr).ok()) << "plain text";
  MakePki("other");
  const auto foreign = WorkerCredentials(folder_ + "/other/workers/head-a");
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  EXPECT_FALSE(Try(*foreign).ok()) << "another authority";
  const auto without = UserCredentials(folder_ + "/pki/client/ca.crt", "");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(Try(*without).ok()) << "no certificate";
  const auto own = WorkerCredentials(folder_ + "/pki/workers/head-a");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(Try(*own), absl::OkStatus());
}

// Off this host etcd is talked to over TLS alone, and the files have to be there.
TEST_F(EtcdTlsTest, StandbysNeedTheFiles) {
  sigset_t none;
  sigemptyset(&none);
  const auto listening = [](const std::string&) { return absl::OkStatus(); };
  StandbyOptions options;
  options.etcd = {"etcd-1.example.org:2379"};
  const absl::Status plain = RunWithStandby({}, options, none, listening);
  EXPECT_TRUE(absl::IsInvalidArgument(plain)) << plain;
  EXPECT_THAT(std::string(plain.message()), HasSubstr("--etcd-tls"));
  options.etcd_tls_dir = folder_ + "/nowhere";
  EXPECT_TRUE(absl::IsNotFound(RunWithStandby({}, options, none, listening)));
}

}  // namespace
}  // namespace milepost::coordinator
