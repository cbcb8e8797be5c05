#include "coordinator/security/service_account_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/error_details.h"
#include "coordinator/security/fake_cluster_keys.h"

namespace milepost::coordinator {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const absl::Time kTokenNow = absl::FromUnixSeconds(1'800'000'000);

// RFC 7515, A.2 (RS256) and A.3 (ES256).
constexpr char kRfcClaims[] =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlf"
    "Q";
constexpr char kRfcRsa[] =
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-"
    "4qPCJrcS2mJPMEzP1Pt0Bm4d4Ql"
    "L-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-"
    "bSf63kpaSHSXndS5z5rexMdbBYUsL"
    "A9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-"
    "DWNmoudF8"
    "NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
constexpr char kRfcRsaSignature[] =
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_"
    "O8W2Fp5jujG"
    "bds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_"
    "nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0"
    "GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-"
    "eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6Lb"
    "gGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
constexpr char kRfcX[] = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
constexpr char kRfcY[] = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
constexpr char kRfcEcSignature[] =
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

json Rsa() { return {{"kty", "RSA"}, {"n", kRfcRsa}, {"e", "AQAB"}}; }
json Ec() { return {{"kty", "EC"}, {"crv", "P-256"}, {"x", kRfcX}, {"y", kRfcY}}; }
absl::StatusOr<KeySet> Set(std::vector<json> keys) {
  return KeySet::Parse(json{{"keys", keys}}.dump());
}
std::string RfcToken(const json& header, const std::string& signature) {
  return absl::StrCat(absl::WebSafeBase64Escape(header.dump()), ".", kRfcClaims, ".", signature);
}

TEST(KeySetTest, ReadsTheTokensOfTheStandard) {
  for (const auto& [key, algorithm, signature] :
       {std::tuple{Rsa(), "RS256", kRfcRsaSignature}, {Ec(), "ES256", kRfcEcSignature}}) {
    const auto keys = Set({key});
    ASSERT_TRUE(keys.ok()) << keys.status();
    const std::string token = RfcToken({{"alg", algorithm}}, signature);
    EXPECT_TRUE(IsAccountToken(token));
    const auto claims = keys->Verify(token);
    ASSERT_TRUE(claims.ok()) << algorithm << ": " << claims.status();
    EXPECT_EQ(json::parse(*claims)["iss"], "joe");
  }
}

TEST(KeySetTest, OfSeveralKeysATokenNamesItsOwn) {
  json rsa = Rsa(), ec = Ec();
  rsa["kid"] = ec["kid"] = "a";
  const auto keys = Set({rsa, ec});
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto unnamed = keys->Verify(RfcToken({{"alg", "RS256"}}, kRfcRsaSignature));
  EXPECT_THAT(unnamed.status().message(), HasSubstr("does not name its key"));
}

TEST(KeySetTest, WhatIsForgedIsRefused) {
  const auto keys = Set({Rsa()});
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::string genuine = RfcToken({{"alg", "RS256"}}, kRfcRsaSignature);
  ASSERT_TRUE(keys->Verify(genuine).ok());
  std::vector<std::string> parts = absl::StrSplit(genuine, '.');
  std::string other_claims = absl::WebSafeBase64Escape(R"({"iss":"eve"})");
  for (const std::string& forged : {
           RfcToken({{"alg", "none"}}, ""),
           RfcToken({{"alg", "None"}}, ""),
           RfcToken({{"alg", "HS256"}}, kRfcRsaSignature),
           RfcToken({{"alg", "RS256"}}, kRfcEcSignature),
           RfcToken({{"alg", "ES256"}}, kRfcRsaSignature),
           RfcToken({{"alg", "PS256"}}, kRfcRsaSignature),
           RfcToken({{"alg", "ES384"}}, kRfcEcSignature),
           RfcToken({{"alg", "RS256"}, {"x", 1}}, kRfcRsaSignature),  // another header
           RfcToken({{"alg", "RS256"}}, ""),
           RfcToken({{"alg", 5}}, kRfcRsaSignature),
           RfcToken(json::array(), kRfcRsaSignature),
           absl::StrCat(parts[0], ".", other_claims, ".", parts[2]),
           absl::StrCat(parts[0], "..", parts[2]),
           std::string("eyJ.."),
           std::string("..."),
           std::string(),
           absl::StrCat(parts[0], ".", std::string(9'000, 'A'), ".", parts[2]),
       }) {
    const auto claims = keys->Verify(forged);
    EXPECT_TRUE(absl::IsUnauthenticated(claims.status())) << forged << ": " << claims.status();
  }
}

// The cluster's key that anybody may read, taken as a secret.
TEST(KeySetTest, ASecretIsNoKey) {
  const json secret = {{"kty", "oct"}, {"k", absl::WebSafeBase64Escape("secret")}};
  EXPECT_TRUE(absl::IsInvalidArgument(Set({secret}).status()));
  EXPECT_TRUE(Set({secret, Ec()}).ok());
}

TEST(KeySetTest, AKeyThatIsNamedIsTheOnlyOneThatCounts) {
  json named = Rsa();
  named["kid"] = "a";
  const auto keys = Set({named});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Verify(RfcToken({{"alg", "RS256"}}, kRfcRsaSignature)).ok());
  EXPECT_TRUE(absl::IsNotFound(
      keys->Verify(RfcToken({{"alg", "RS256"}, {"kid", "b"}}, kRfcRsaSignature)).status()));
}

TEST(KeySetTest, SaysWhatIsWrongWithASet) {
  json encrypts = Rsa(), small = Rsa();
  encrypts["use"] = "enc";
  small["n"] = std::string(kRfcRsa).substr(0, 170);
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{}"), std::string(R"({"keys":5})"),
        std::string(R"({"keys":[]})"), std::string(R"({"keys":[7,{"kty":"RSA"}]})"),
        json{{"keys", {encrypts}}}.dump(), std::string(kMostKeySetBytes + 1, ' ')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(KeySet::Parse(bad).status())) << bad.substr(0, 50);
  }
  EXPECT_THAT(Set({small}).status().message(), HasSubstr("less than 2048 bits"));
}

absl::StatusOr<ServiceAccount> Read(const json& claims) {
  return ReadClaims(claims.dump(), {.issuer = FakeClusterKeys::kIssuer}, kTokenNow);
}

TEST(ReadClaimsTest, SaysWhoItIs) {
  json claims = FakeClusterKeys::Claims("ml", "milepost-h100", kTokenNow);
  auto account = Read(claims);
  ASSERT_TRUE(account.ok()) << account.status();
  EXPECT_EQ(account->name, "ml/milepost-h100");
  EXPECT_EQ(account->expire, kTokenNow + absl::Hours(1));
  claims["aud"] = "milepost";
  EXPECT_TRUE(Read(claims).ok());
  claims["aud"] = {"https://kubernetes.default.svc", "milepost"};
  EXPECT_TRUE(Read(claims).ok());
}

TEST(ReadClaimsTest, WhatDoesNotHoldIsRefused) {
  const json good = FakeClusterKeys::Claims("ml", "milepost-h100", kTokenNow);
  const auto with = [&](const char* name, const json& value) {
    json claims = good;
    claims[name] = value;
    return Read(claims).status();
  };
  EXPECT_EQ(ReasonOf(with("exp", absl::ToUnixSeconds(kTokenNow))), v1::ERROR_REASON_TOKEN_EXPIRED);
  EXPECT_THAT(with("nbf", absl::ToUnixSeconds(kTokenNow + absl::Minutes(2))).message(),
              HasSubstr("does not hold yet"));
  EXPECT_TRUE(with("nbf", absl::ToUnixSeconds(kTokenNow + absl::Seconds(30))).ok());
  EXPECT_THAT(with("iss", "https://elsewhere").message(), HasSubstr("another issuer"));
  EXPECT_THAT(with("aud", {"https://kubernetes.default.svc"}).message(),
              HasSubstr("not for the audience milepost"));
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, json>>{{"exp", nullptr},
                                                 {"exp", "1900000000"},
                                                 {"aud", nullptr},
                                                 {"aud", {{"a", "milepost"}}},
                                                 {"aud", json::array()},
                                                 {"iss", 5},
                                                 {"sub", nullptr},
                                                 {"sub", "system:admin"},
                                                 {"sub", "system:serviceaccount:ml"},
                                                 {"sub", "system:serviceaccount:ml:a:b"},
                                                 {"sub", "system:serviceaccount::a"},
                                                 {"sub", "system:serviceaccount:ml/x:a"},
                                                 {"sub", "system:serviceaccount:ml:A"}}) {
    EXPECT_TRUE(absl::IsUnauthenticated(with(name, value))) << name << " " << value;
  }
  EXPECT_TRUE(absl::IsUnauthenticated(ReadClaims("5", {}, kTokenNow).status()));
}

}  // namespace
}  // namespace milepost::coordinator
