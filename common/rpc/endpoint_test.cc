#include "common/rpc/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/pki/certificate.h"
#include "common/rpc/coordinators.h"
#include "common/rpc/tls_mirror.h"
#include "common/rpc/tls_watch.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EndpointTest, OnlyAddressesOfThisHostAreLoopback) {
  for (const char* address : {"localhost:1", "127.0.0.1:7070", "127.1.2.3:0", "[::1]:7070"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"127.example.org:7070", "10.0.0.1:1", "localhost.example.org:1",
                              "[::]:7070", "0.0.0.0:7070", "128.0.0.1:1", ":7070", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(EndpointTest, SeveralAreLoopbackWhenAllAre) {
  EXPECT_TRUE(IsLoopback("127.0.0.1:1,localhost:2"));
  EXPECT_FALSE(IsLoopback("127.0.0.1:1,10.0.0.1:2"));
  EXPECT_FALSE(IsLoopback("10.0.0.1:1,127.0.0.1:2"));
  EXPECT_FALSE(IsLoopback(","));
}

TEST(EndpointTest, SplitsAddresses) {
  EXPECT_THAT(SplitAddresses("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(SplitAddresses("a:1, b:2,,[::1]:3,"), ElementsAre("a:1", "b:2", "[::1]:3"));
  EXPECT_THAT(SplitAddresses(""), ElementsAre(""));
}

// gRPC takes port 443 where there is none.
TEST(EndpointTest, AnAddressHasAHostAndAPort) {
  for (const char* good : {"a:1", "head.example.com:7070", "[::1]:3", "a:1, b:65535"}) {
    EXPECT_TRUE(CheckAddresses(good).ok()) << good;
  }
  for (const char* bad : {"", "a", ":1", "a:", "a:0", "a:65536", "a:x", "[::1]", "a:1,b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckAddresses(bad))) << bad;
  }
}

TEST(EndpointTest, CertificatesThatDoNotFitHaveARemedy) {
  EXPECT_THAT(TlsRemedy("SSL routines::certificate verify failed: Invalid certificate"),
              HasSubstr("--ca"));
  EXPECT_THAT(TlsRemedy("Custom verification check failed with error: Hostname Verification Check "
                        "failed."),
              HasSubstr("init-pki --host"));
  EXPECT_EQ(TlsRemedy("Connection refused"), "");
}

TEST(EndpointTest, AKeyThatOthersMayReadOrChangeIsRefused) {
  std::string folder = std::filesystem::temp_directory_path() / "endpoint_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string key = folder + "/tls.key";
  for (const char* file : {"/ca.crt", "/tls.crt"}) {
    std::ofstream(folder + file) << "-----BEGIN CERTIFICATE-----\n";
  }
  std::ofstream(key) << "-----BEGIN PRIVATE KEY-----\n";
  for (const mode_t mode : {0666, 0644, 0602, 0620}) {
    ASSERT_EQ(chmod(key.c_str(), mode), 0);
    for (const absl::Status& status :
         {WorkerCredentials(folder).status(), CoordinatorCredentials(folder).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode << status;
      EXPECT_NE(status.message().find("chmod 600 " + key), std::string::npos) << status;
    }
  }
  for (const mode_t mode : {0600, 0400, 0640}) {
    ASSERT_EQ(chmod(key.c_str(), mode), 0);
    EXPECT_FALSE(absl::IsPermissionDenied(WorkerCredentials(folder).status())) << mode;
  }
  std::filesystem::remove_all(folder);
}

// A folder as init-pki makes it, and a key that is another's.
class TlsFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    const absl::Time now = absl::Now();
    const std::string key = MakePrivateKey().value();
    const KeyPair authority =
        MakeAuthority("authority", MakePrivateKey().value(), now, absl::Hours(1)).value();
    const Certificate worker{.name = "a", .hosts = {}, .uri = WorkerUri("a"), .not_after = {}};
    Write("ca.crt", authority.certificate);
    Write("tls.crt", IssueCertificate(authority, worker, key, now, absl::Hours(1)).value());
    Write("tls.key", key);
    key_ = key;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Whole or not at all: others read meanwhile.
  void Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(chmod((path + ".new").c_str(), 0600), 0);
    std::filesystem::rename(path + ".new", path);
  }

  std::string folder_ = std::filesystem::temp_directory_path() / "tls_folder_test_XXXXXX";
  std::string key_;
};

TEST_F(TlsFolderTest, AKeyThatIsNotTheCertificatesIsRefused) {
  EXPECT_EQ(CheckTlsFolder(TlsFolder(folder_)), absl::OkStatus());
  EXPECT_EQ(CoordinatorCredentials(folder_).status(), absl::OkStatus());
  Write("tls.key", MakePrivateKey().value());
  for (const absl::Status& status :
       {WorkerCredentials(folder_).status(), CoordinatorCredentials(folder_).status()}) {
    EXPECT_EQ(status, absl::InvalidArgumentError(folder_ + "/tls.crt and " + folder_ +
                                                 "/tls.key: the key is not the certificate's"));
  }
}

// A plain open of it would wait for a writer for ever.
TEST_F(TlsFolderTest, AFifoInPlaceOfAFileIsRefused) {
  for (const char* name : {"/ca.crt", "/tls.crt", "/tls.key"}) {
    const std::string path = folder_ + name;
    std::filesystem::rename(path, path + ".kept");
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_TRUE(absl::IsInvalidArgument(CoordinatorCredentials(folder_).status())) << path;
    std::filesystem::rename(path + ".kept", path);
  }
}

// gRPC ends the process at an empty certificate, which is what `cp` makes of it for a moment.
TEST_F(TlsFolderTest, TheMirrorKeepsWhatIsOfUse) {
  const auto read = [](const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const auto paths = MirrorTlsFolder(TlsFolder(folder_));
  ASSERT_TRUE(paths.ok()) << paths.status();
  const std::string certificate = read(folder_ + "/tls.crt");
  for (const char* name : {"tls.crt", "tls.key", "ca.crt"}) {
    const std::string whole = read(folder_ + "/" + name);
    Write(name, "");
    EXPECT_FALSE(MirrorTlsFolder(TlsFolder(folder_)).ok()) << name;
    EXPECT_EQ(read(paths->certificate), certificate);
    EXPECT_EQ(read(paths->key), key_);
    EXPECT_THAT(read(paths->authority), testing::HasSubstr("BEGIN CERTIFICATE"));
    Write(name, whole);
  }
  Write("ca.crt", certificate);  // another one
  const auto again = MirrorTlsFolder(TlsFolder(folder_));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->authority, paths->authority) << "gRPC watches this name";
  EXPECT_EQ(read(paths->authority), certificate);
}

TEST_F(TlsFolderTest, TheWatchSaysWhatWasReplacedBadlyAndMended) {
  absl::Mutex mutex;
  std::vector<absl::Status> told;
  const TlsWatch watch(TlsFolder(folder_), absl::Milliseconds(1), [&](const absl::Status& now) {
    absl::MutexLock lock(&mutex);
    told.push_back(now);
  });
  const auto await = [&](size_t count) {
    absl::MutexLock lock(&mutex);
    const auto reached = [&] { return told.size() >= count; };
    return mutex.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(30));
  };
  Write("tls.key", key_.substr(0, key_.size() / 2));  // torn
  ASSERT_TRUE(await(1));
  Write("tls.key", key_);
  ASSERT_TRUE(await(2));
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(told[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(told[1], absl::OkStatus());
  EXPECT_EQ(told.size(), 2u);
}

TEST(CoordinatorsTest, GoOnFromWhatFailedAndRemember) {
  Coordinators first(Endpoint("goes-on-a:1,goes-on-b:2,goes-on-c:3"));
  EXPECT_TRUE(first.several());
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
  first.Failed("goes-on-b:2");  // not the current one: news that comes late
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
  first.Failed("goes-on-a:1");
  first.Failed("goes-on-a:1");
  EXPECT_EQ(first.Current().address, "goes-on-b:2");
  EXPECT_EQ(Coordinators(Endpoint("goes-on-a:1,goes-on-b:2,goes-on-c:3")).Current().address,
            "goes-on-b:2");
  first.Failed("goes-on-b:2");
  first.Failed("goes-on-c:3");
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
}

TEST(CoordinatorsTest, AnOnlyOneIsKept) {
  CoordinatorChannel only(Endpoint("127.0.0.1:1"));
  EXPECT_FALSE(only.several());
  const auto channel = only.Get();
  only.Failed(channel);
  EXPECT_EQ(only.Get(), channel);
}

TEST(CoordinatorsTest, OneFailureMovesOnOnce) {
  CoordinatorChannel several(Endpoint("127.0.0.1:1,127.0.0.1:2"));
  const auto channel = several.Get();
  several.Failed(channel);
  const auto next = several.Get();
  EXPECT_NE(next, channel);
  several.Failed(channel);  // of another call on the same connection
  EXPECT_EQ(several.Get(), next);
}

}  // namespace
}  // namespace milepost
