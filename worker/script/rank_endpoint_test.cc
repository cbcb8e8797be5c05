#include "worker/script/rank_endpoint.h"

#include <curl/curl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

class RankEndpointTest : public testing::Test {
 protected:
  RankEndpointTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-progress-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    auto endpoint =
        RankEndpoint::Start(folder_, [](const std::string& path, const std::string& body) {
          return HttpResponse{.status = 409, .body = absl::StrCat(path, " ", body)};
        });
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
    std::ifstream file(endpoint_->token_file());
    std::getline(file, token_);
  }
  ~RankEndpointTest() override { std::filesystem::remove_all(folder_); }

  // The answer's status. Its text is in answer_.
  long Post(const std::string& token, const std::string& body,  // NOLINT: curl's type
            const std::string& path = "/progress") {
    CURL* curl = curl_easy_init();
    curl_slist* headers =
        curl_slist_append(nullptr, absl::StrCat("Authorization: Bearer ", token).c_str());
    curl_easy_setopt(curl, CURLOPT_URL, (endpoint_->url() + path).c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));  // NOLINT
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    answer_.clear();
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer_);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Append);
    curl_easy_perform(curl);
    long status = 0;  // NOLINT
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return status;
  }
  static size_t Append(char* data, size_t size, size_t count, void* text) {
    static_cast<std::string*>(text)->append(data, size * count);
    return size * count;
  }

  std::string folder_, token_, answer_;
  std::unique_ptr<RankEndpoint> endpoint_;
};

constexpr char kStep5[] =
    R"({"trainerStatus": {"metrics": [{"name": "current_step", "value": "5"}]}})";

TEST_F(RankEndpointTest, TellsWhatIsPosted) {
  ASSERT_TRUE(endpoint_->TakeNews().has_value()) << "that the rank runs";
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
  EXPECT_EQ(Post(token_, kStep5), 200);
  EXPECT_EQ(endpoint_->TakeNews().value().step(), 5);
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
}

TEST_F(RankEndpointTest, RefusesStrangersAndNonsense) {
  endpoint_->TakeNews();
  EXPECT_EQ(token_.size(), 32u);
  EXPECT_EQ(Post("", kStep5), 401);
  EXPECT_EQ(Post(std::string(32, '0'), kStep5), 401);
  EXPECT_EQ(Post(token_, "{}"), 400);
  EXPECT_EQ(Post(token_, std::string(100 << 10, '[')), 413);
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
}

TEST_F(RankEndpointTest, OtherPathsAreAnsweredSlowly) {
  EXPECT_EQ(Post(token_, "me", "/checkpoint/save"), 409);
  EXPECT_EQ(answer_, "/checkpoint/save me");
  EXPECT_EQ(Post("", "me", "/checkpoint/save"), 401);
  EXPECT_EQ(Post(token_, std::string(1 << 20, 'x'), "/checkpoint/save"), 409);
  EXPECT_EQ(Post(token_, std::string(17 << 20, 'x'), "/checkpoint/save"), 413);
}

}  // namespace
}  // namespace milepost::worker
