#include "common/pki/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/pki/secret.h"

namespace milepost {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class CertificateTest : public ::testing::Test {
 protected:
  CertificateTest() {
    key_ = *MakePrivateKey();
    authority_ = *MakeAuthority("authority", *MakePrivateKey(), kNow, absl::Hours(24));
  }
  std::string key_;
  KeyPair authority_;
};

TEST_F(CertificateTest, ARequestGetsTheCertificateThatIsWantedForItsKey) {
  const auto request = MakeCertificateRequest("what it says does not count", key_);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto made = IssueForRequest(
      authority_, {.name = "gpu-01", .hosts = {}, .uri = WorkerUri("gpu-01"), .pool = "a100"},
      *request, kNow, absl::Hours(2));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(CheckKeyIsOf(*made, key_).ok());
  const auto read = ReadCertificate(*made);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->name, "gpu-01");
  EXPECT_EQ(WorkerIdOfUri(read->uri), "gpu-01");
  EXPECT_EQ(read->pool, "a100");
  EXPECT_EQ(read->not_after, kNow + absl::Hours(2));
  EXPECT_LT(read->not_before, kNow);
}

TEST_F(CertificateTest, WithoutAPoolNoneIsNamed) {
  const auto made =
      IssueCertificate(authority_, {.name = "a", .hosts = {}, .uri = WorkerUri("a"), .pool = ""},
                       key_, kNow, absl::Hours(2));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ReadCertificate(*made)->pool, "");
}

TEST_F(CertificateTest, ARequestIsKnownByItsKey) {
  const auto digest = [](const std::string& key) {
    return *KeyDigestOfRequest(*MakeCertificateRequest("a", key));
  };
  EXPECT_EQ(digest(key_), digest(key_));
  EXPECT_EQ(digest(key_).size(), 32u);
  EXPECT_NE(digest(key_), digest(*MakePrivateKey()));
}

// Else anybody could have a certificate made for somebody's key, or a key that nobody has.
TEST_F(CertificateTest, ARequestThatIsNotSignedWithItsKeyIsRefused) {
  std::string request = *MakeCertificateRequest("somebody", key_);
  const size_t end = request.find("\n-----END");
  const size_t at = end - 20;  // in the signature
  request[at] = request[at] == 'A' ? 'B' : 'A';
  const auto digest = KeyDigestOfRequest(request);
  EXPECT_EQ(digest.status().code(), absl::StatusCode::kInvalidArgument) << digest.status();
}

TEST_F(CertificateTest, AWeakKeyIsRefused) {
  constexpr char kRsa1024[] = R"(-----BEGIN CERTIFICATE REQUEST-----
MIIBTjCBuAIBADAPMQ0wCwYDVQQDDAR3ZWFrMIGfMA0GCSqGSIb3DQEBAQUAA4GN
ADCBiQKBgQDsXWsWGjUAfKr0BjrY9qMghLrX4LEVdmRS8LUQvrfh2W3H6BqdIIgk
B5DHjIoEatr1RwvDuK1aQuAjCX4TM1Za9uHpSigSfjz4S/IC1LfS0e28ueVLFvkA
sIGRI9wih6mD7WzxulMEXrgVVF2Vn26z6Cwh8pgdcxQK/ul5iRL9cQIDAQABoAAw
DQYJKoZIhvcNAQELBQADgYEAJIkPSG1aUIZm7OyErIyEzhpj2YvTgPWCR0PZEIoD
n15hfHhhQJjifU+BwR/WLckJSz8gm/o/2fF/N7SYQX2qxAbe1XGZH0TxCrP+6hR7
ckA5O9AspwGhwsCOhbN43SeOVA+6xPNI89fNEkjqZtfwbHhO5KRcK+RctV6B9K/h
BQE=
-----END CERTIFICATE REQUEST-----
)";
  EXPECT_THAT(KeyDigestOfRequest(kRsa1024).status().message(), HasSubstr("too weak"));
}

TEST_F(CertificateTest, NonsenseIsNoRequest) {
  for (const std::string& text : {std::string(), std::string("nonsense"), key_,
                                  authority_.certificate, std::string(20'000, 'x')}) {
    const auto digest = KeyDigestOfRequest(text);
    EXPECT_EQ(digest.status().code(), absl::StatusCode::kInvalidArgument) << digest.status();
    EXPECT_THAT(digest.status().message(), HasSubstr("certificate request"));
  }
}

// Nobody is asked for a pass phrase: the call would never end.
TEST_F(CertificateTest, WhatSaysToBeEncryptedIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // what would be asked: it says nothing
  const int before = dup(STDIN_FILENO);
  ASSERT_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  for (const char* kind : {"CERTIFICATE REQUEST", "CERTIFICATE"}) {
    const std::string text = absl::StrCat(
        "-----BEGIN ", kind, "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,",
        std::string(32, '0'), "\n\n", std::string(64, 'A'), "\n-----END ", kind, "-----\n");
    EXPECT_FALSE(KeyDigestOfRequest(text).ok());
    EXPECT_FALSE(ReadCertificate(text).ok());
    EXPECT_FALSE(HasCertificate(text, authority_.certificate).ok());
  }
  dup2(before, STDIN_FILENO);
  for (const int fd : {before, ends[0], ends[1]}) close(fd);
}

TEST_F(CertificateTest, ABundleHasItsCertificates) {
  const KeyPair other = *MakeAuthority("other", *MakePrivateKey(), kNow, absl::Hours(24));
  EXPECT_TRUE(*HasCertificate(authority_.certificate, authority_.certificate));
  EXPECT_FALSE(*HasCertificate(other.certificate, authority_.certificate));
  EXPECT_TRUE(*HasCertificate(other.certificate + authority_.certificate, authority_.certificate));
  EXPECT_FALSE(HasCertificate("nonsense", authority_.certificate).ok());
}

}  // namespace
}  // namespace milepost
