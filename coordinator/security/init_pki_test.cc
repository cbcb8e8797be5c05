#include "coordinator/security/init_pki.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/atomic_file.h"
#include "common/pki/certificate.h"
#include "common/pki/secret.h"
#include "coordinator/security/token_text.h"

namespace milepost::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kMade = absl::FromUnixSeconds(1'800'000'000);

class InitPkiTest : public ::testing::Test {
 protected:
  InitPkiTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-pki-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    request_ = {.dir = dir_ + "/pki",
                .hosts = {"head", "10.0.0.1", "fd00::1"},
                .workers = {"a"},
                .lifetime = absl::Hours(24)};
  }
  ~InitPkiTest() override { std::filesystem::remove_all(dir_); }

  std::string Read(const std::string& name) {
    std::ifstream file(dir_ + "/pki/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string dir_;
  PkiRequest request_;
};

TEST_F(InitPkiTest, MakesWhatEachHostNeedsAndNoMore) {
  ASSERT_TRUE(InitPki(request_, kMade).ok());
  const auto coordinator = ReadCertificate(Read("coordinator/tls.crt"));
  ASSERT_TRUE(coordinator.ok());
  EXPECT_THAT(coordinator->hosts,
              ElementsAre("head", "10.0.0.1", "fd00::1", "localhost", "127.0.0.1"));
  EXPECT_EQ(coordinator->uri, "");
  const auto worker = ReadCertificate(Read("workers/a/tls.crt"));
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(WorkerIdOfUri(worker->uri), "a");
  EXPECT_EQ(worker->not_after, kMade + absl::Hours(24));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/pki")) {
    struct stat info = {};
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    if (entry.is_directory()) {
      EXPECT_EQ(info.st_mode & 0777, 0700u) << entry.path();
    } else if (entry.path().extension() != ".crt") {
      EXPECT_EQ(info.st_mode & 0777, 0600u) << entry.path();
    }
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/pki/coordinator/ca.key"));
  const auto digest = ParseTokenDigestLine(Read("coordinator/admin-token.sha256"));
  ASSERT_TRUE(digest.ok());
  std::string token = Read("client/admin-token");
  token.pop_back();
  EXPECT_EQ(digest->sha256, Sha256(token));
  EXPECT_EQ(digest->id, TokenIdOf(token));
}

TEST_F(InitPkiTest, AgainRenewsCertificatesAndKeepsTheRest) {
  ASSERT_TRUE(InitPki(request_, kMade).ok());
  const std::vector<std::string> kept = {"ca/ca.crt",           "ca/ca.key",
                                         "coordinator/tls.key", "workers/a/tls.key",
                                         "client/admin-token",  "coordinator/admin-token.sha256"};
  std::vector<std::string> before;
  for (const std::string& name : kept) before.push_back(Read(name));
  const std::string certificate = Read("coordinator/tls.crt");
  request_.hosts = {};
  request_.workers = {"a", "b"};
  ASSERT_TRUE(InitPki(request_, kMade + absl::Hours(12)).ok());
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(Read(kept[i]), before[i]) << kept[i];
  EXPECT_NE(Read("coordinator/tls.crt"), certificate);
  const auto coordinator = ReadCertificate(Read("coordinator/tls.crt"));
  EXPECT_EQ(coordinator->hosts.size(), 5u);
  EXPECT_EQ(coordinator->not_after, kMade + absl::Hours(36));
  EXPECT_FALSE(Read("workers/b/tls.crt").empty());
}

TEST_F(InitPkiTest, SaysWhichNamesTheCoordinatorLoses) {
  ASSERT_TRUE(InitPki(request_, kMade).ok());
  request_.hosts = {"head", "head-2"};
  const auto made = InitPki(request_, kMade);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(*made, Contains(HasSubstr("no longer as 10.0.0.1, fd00::1;")));
  const auto again = InitPki(request_, kMade);
  EXPECT_THAT(*again, Not(Contains(HasSubstr("no longer"))));
}

TEST_F(InitPkiTest, ADamagedCertificateIsMadeAnewWhereTheNamesAreGiven) {
  ASSERT_TRUE(InitPki(request_, kMade).ok());
  const std::string path = dir_ + "/pki/coordinator/tls.crt";
  ASSERT_TRUE(WriteFileAtOnce(path, "damaged", kPublicMode).ok());
  PkiRequest without = request_;
  without.hosts.clear();
  EXPECT_FALSE(InitPki(without, kMade).ok());
  const auto made = InitPki(request_, kMade);
  EXPECT_TRUE(made.ok()) << made.status();
}

TEST_F(InitPkiTest, RefusesWhatIsNoNameAndALostKey) {
  for (const char* host : {"", "a b", "x,DNS:evil", "10.0.0.1\n"}) {
    request_.hosts = {host};
    EXPECT_TRUE(absl::IsInvalidArgument(InitPki(request_, kMade).status())) << host;
  }
  request_.hosts = {"head"};
  for (const char* worker : {"", "../up", "a/b", ".."}) {
    request_.workers = {worker};
    EXPECT_TRUE(absl::IsInvalidArgument(InitPki(request_, kMade).status())) << worker;
  }
  request_.workers = {};
  ASSERT_TRUE(InitPki(request_, kMade).ok());
  std::filesystem::remove(dir_ + "/pki/ca/ca.key");
  EXPECT_TRUE(absl::IsFailedPrecondition(InitPki(request_, kMade).status()));
}

TEST(PrincipalUriTest, OnlyWorkersUrisAreWorkers) {
  EXPECT_EQ(WorkerIdOfUri(WorkerUri("a")), "a");
  EXPECT_EQ(WorkerIdOfUri("spiffe://other/a"), "");
  EXPECT_EQ(WorkerIdOfUri(""), "");
}

}  // namespace
}  // namespace milepost::coordinator
