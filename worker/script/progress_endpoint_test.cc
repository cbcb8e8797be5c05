#include "worker/script/progress_endpoint.h"

#include <curl/curl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

class ProgressEndpointTest : public testing::Test {
 protected:
  ProgressEndpointTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-progress-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    auto endpoint = ProgressEndpoint::Start(folder_);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
    std::ifstream file(endpoint_->token_file());
    std::getline(file, token_);
  }
  ~ProgressEndpointTest() override { std::filesystem::remove_all(folder_); }

  // The answer's status.
  long Post(const std::string& token, const std::string& body) const {  // NOLINT: curl's type
    CURL* curl = curl_easy_init();
    curl_slist* headers =
        curl_slist_append(nullptr, absl::StrCat("Authorization: Bearer ", token).c_str());
    curl_easy_setopt(curl, CURLOPT_URL, endpoint_->url().c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));  // NOLINT
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
    std::string answer;
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
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

  std::string folder_, token_;
  std::unique_ptr<ProgressEndpoint> endpoint_;
};

constexpr char kStep5[] =
    R"({"trainerStatus": {"metrics": [{"name": "current_step", "value": "5"}]}})";

TEST_F(ProgressEndpointTest, TellsWhatIsPosted) {
  ASSERT_TRUE(endpoint_->TakeNews().has_value()) << "that the rank runs";
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
  EXPECT_EQ(Post(token_, kStep5), 200);
  EXPECT_EQ(endpoint_->TakeNews().value().step(), 5);
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
}

TEST_F(ProgressEndpointTest, RefusesStrangersAndNonsense) {
  endpoint_->TakeNews();
  EXPECT_EQ(token_.size(), 32u);
  EXPECT_EQ(Post("", kStep5), 401);
  EXPECT_EQ(Post(std::string(32, '0'), kStep5), 401);
  EXPECT_EQ(Post(token_, "{}"), 400);
  EXPECT_EQ(Post(token_, std::string(100 << 10, '[')), 413);
  EXPECT_FALSE(endpoint_->TakeNews().has_value());
}

}  // namespace
}  // namespace milepost::worker
