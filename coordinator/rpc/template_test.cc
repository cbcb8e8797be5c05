// Templates, over a coordinator. Who may do what with them: access_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/rpc/server_fixture.h"
#include "coordinator/rpc/template_table.h"
#include "milepost/v1/template.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TemplateServiceTest : public ServerTest {
 protected:
  using Stub = v1::TemplateService::Stub;

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response = nullptr) {
    grpc::ClientContext context;
    Response ignored;
    const auto stub = v1::TemplateService::NewStub(MakeChannel(server_->address()));
    return FromGrpcStatus(
        (stub.get()->*method)(&context, request, response == nullptr ? &ignored : response));
  }
  absl::Status Create(const std::string& project, const std::string& id, const std::string& yaml,
                      v1::Template* made = nullptr, bool validate_only = false) {
    v1::CreateTemplateRequest request;
    request.set_project(project);
    request.set_template_id(id);
    request.mutable_template_()->set_spec_yaml(yaml);
    request.set_validate_only(validate_only);
    return Call(&Stub::CreateTemplate, request, made);
  }
  absl::Status Update(const v1::Template& wanted, bool allow_missing = false,
                      v1::Template* made = nullptr) {
    v1::UpdateTemplateRequest request;
    *request.mutable_template_() = wanted;
    request.set_allow_missing(allow_missing);
    return Call(&Stub::UpdateTemplate, request, made);
  }
  absl::Status Get(const std::string& name, v1::Template* found = nullptr) {
    v1::GetTemplateRequest request;
    request.set_name(name);
    return Call(&Stub::GetTemplate, request, found);
  }
  absl::Status Delete(const std::string& name, const std::string& etag = "") {
    v1::DeleteTemplateRequest request;
    request.set_name(name);
    request.set_etag(etag);
    return Call(&Stub::DeleteTemplate, request);
  }
  // All pages, of one each.
  std::vector<std::string> List(const std::string& project) {
    v1::ListTemplatesRequest request;
    request.set_project(project);
    request.set_page_size(1);
    std::vector<std::string> names;
    do {
      v1::ListTemplatesResponse page;
      const absl::Status status = Call(&Stub::ListTemplates, request, &page);
      EXPECT_TRUE(status.ok()) << status;
      for (const v1::Template& one : page.templates()) {
        EXPECT_EQ(one.spec_yaml(), "");
        names.push_back(one.name());
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return names;
  }
};

TEST_F(TemplateServiceTest, AreKeptAsTheyWereWritten) {
  const std::string yaml = "# of us all\ntrain: {steps: 5}\n";
  v1::Template made;
  ASSERT_TRUE(Create("", "gpt2", yaml, &made).ok());
  EXPECT_EQ(made.name(), "projects/default/templates/gpt2");
  EXPECT_EQ(made.spec_yaml(), yaml);
  EXPECT_NE(made.etag(), "");
  ASSERT_TRUE(Create("vision", "gpt2", "train: {steps: 6}", nullptr).ok());
  ASSERT_TRUE(Create("vision", "bert", "train: {steps: 7}", nullptr).ok());
  Start();
  v1::Template found;
  ASSERT_TRUE(Get(made.name(), &found).ok());
  EXPECT_EQ(found.SerializeAsString(), made.SerializeAsString());
  EXPECT_THAT(List("vision"),
              ElementsAre("projects/vision/templates/bert", "projects/vision/templates/gpt2"));
  EXPECT_EQ(List("").size(), 3u);
  ASSERT_TRUE(Delete("projects/vision/templates/bert").ok());
  Start();
  EXPECT_THAT(List("vision"), ElementsAre("projects/vision/templates/gpt2"));
}

TEST_F(TemplateServiceTest, ChangesAreFenced) {
  v1::Template made;
  ASSERT_TRUE(Create("p", "t", "train: {steps: 1}", &made).ok());
  EXPECT_EQ(ReasonOf(Create("p", "t", "train: {steps: 2}")), v1::ERROR_REASON_TEMPLATE_EXISTS);
  v1::Template wanted = made;
  wanted.set_spec_yaml("train: {steps: 3}");
  v1::Template changed;
  ASSERT_TRUE(Update(wanted, false, &changed).ok());
  EXPECT_NE(changed.etag(), made.etag());
  EXPECT_EQ(ReasonOf(Update(wanted)), v1::ERROR_REASON_ETAG_MISMATCH);
  EXPECT_EQ(ReasonOf(Delete(made.name(), made.etag())), v1::ERROR_REASON_ETAG_MISMATCH);
  ASSERT_TRUE(Delete(made.name(), changed.etag()).ok());
  EXPECT_EQ(ReasonOf(Delete(made.name())), v1::ERROR_REASON_TEMPLATE_NOT_FOUND);
  EXPECT_EQ(ReasonOf(Get(made.name())), v1::ERROR_REASON_TEMPLATE_NOT_FOUND);
  wanted.clear_etag();
  EXPECT_EQ(ReasonOf(Update(wanted)), v1::ERROR_REASON_TEMPLATE_NOT_FOUND);
  ASSERT_TRUE(Update(wanted, /*allow_missing=*/true, &made).ok());
  // What was read of one that is gone is nothing that this one has had.
  wanted.set_etag(changed.etag());
  EXPECT_EQ(ReasonOf(Update(wanted)), v1::ERROR_REASON_ETAG_MISMATCH);
}

TEST_F(TemplateServiceTest, AreCheckedBeforeTheyAreKept) {
  const auto problem = [&](const std::string& id, const std::string& yaml) {
    const absl::Status status = Create("p", id, yaml);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << id << yaml;
    return std::string(status.message());
  };
  EXPECT_THAT(problem("t", "train:\n  stepz: 1"), HasSubstr("spec_yaml:2: train.stepz: unknown"));
  EXPECT_THAT(problem("t", "data: {train: a.npy}"), HasSubstr("must begin with '/'"));
  EXPECT_THAT(problem("t", ""), HasSubstr("expected a mapping"));
  EXPECT_THAT(problem("t", "#" + std::string(65 << 10, 'x')), HasSubstr("at most 65536"));
  for (const std::string& id : {std::string(), std::string("a/b"), std::string(64, 'x')}) {
    EXPECT_THAT(problem(id, "train: {steps: 1}"), HasSubstr("template.name: expected"));
  }
  EXPECT_TRUE(Create("p", "t", "train: {steps: 1}", nullptr, /*validate_only=*/true).ok());
  EXPECT_THAT(List(""), IsEmpty());
}

TEST_F(TemplateServiceTest, ThereIsRoomForSome) {
  StoreOptions options;
  options.dir = dir_ + "/other";
  auto store = Store::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  TemplateTable table(store->get(), {.of_project = 2, .of_all = 3});
  const auto put = [&](const std::string& project, const std::string& id) {
    v1::Template wanted;
    wanted.set_name(TemplateName(project, id));
    wanted.set_spec_yaml("train: {steps: 1}");
    return ReasonOf(table.Put(wanted, {.allow_missing = true}, absl::UnixEpoch()).status());
  };
  EXPECT_EQ(put("a", "1"), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(put("a", "2"), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(put("a", "3"), v1::ERROR_REASON_TOO_MANY_TEMPLATES);
  EXPECT_EQ(put("a", "2"), v1::ERROR_REASON_UNSPECIFIED);  // it is there already
  EXPECT_EQ(put("b", "1"), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(put("b", "2"), v1::ERROR_REASON_TOO_MANY_TEMPLATES);
}

}  // namespace
}  // namespace milepost::coordinator
