// Every method held to the conventions of docs/use/api.md, as far as descriptors and answers show
// them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/desks/paging.h"
#include "coordinator/rpc/server_fixture.h"
#include "coordinator/security/method_rules.h"
#include "milepost/v1/template.pb.h"

namespace milepost::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Of every .proto of this binary but the records of the store, which are nobody's interface.
std::vector<const FileDescriptor*> Files() {
  std::vector<const FileDescriptor*> files;
  for (const auto& entry : std::filesystem::directory_iterator("proto/milepost/v1")) {
    const std::string name = "milepost/v1/" + entry.path().filename().string();
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
    if (file != nullptr && name != "milepost/v1/store.proto") files.push_back(file);
  }
  return files;
}

std::vector<const MethodDescriptor*> Methods() {
  std::vector<const MethodDescriptor*> methods;
  for (const FileDescriptor* file : Files()) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

void AddEnums(const Descriptor& type, std::vector<const EnumDescriptor*>* enums) {
  for (int i = 0; i < type.enum_type_count(); ++i) enums->push_back(type.enum_type(i));
  for (int i = 0; i < type.nested_type_count(); ++i) AddEnums(*type.nested_type(i), enums);
}

// JobState -> JOB_STATE_
std::string PrefixOf(const std::string& name) {
  std::string prefix;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && absl::ascii_isupper(name[i]) && !absl::ascii_isupper(name[i - 1]);
    if (begins) prefix += '_';
    prefix += absl::ascii_toupper(name[i]);
  }
  return prefix + "_";
}

bool Has(const Descriptor* type, const std::string& name, FieldDescriptor::CppType cpp_type) {
  const FieldDescriptor* field = type->FindFieldByName(name);
  return field != nullptr && field->cpp_type() == cpp_type;
}
bool HasText(const Descriptor* type, const std::string& name) {
  return Has(type, name, FieldDescriptor::CPPTYPE_STRING);
}
bool HasFlag(const Descriptor* type, const std::string& name) {
  return Has(type, name, FieldDescriptor::CPPTYPE_BOOL);
}

class ApiConventionsTest : public ServerTest {
 protected:
  // How a call of one message ends.
  grpc::Status Call(const MethodDescriptor& method, const Message& request) {
    grpc::GenericStub stub(MakeChannel(server_->address()));
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto await = [&] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    auto call = stub.PrepareCall(
        &context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
    call->StartCall(nullptr);
    await();
    const std::string bytes = request.SerializeAsString();
    const grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    await();
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (await());
    grpc::Status status;
    call->Finish(&status, nullptr);
    await();
    return status;
  }
  // INVALID_ARGUMENT's message, or what came instead.
  std::string Refusal(const MethodDescriptor& method, const Message& request) {
    const grpc::Status status = Call(method, request);
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) return status.error_message();
    return absl::StrCat("code ", status.error_code(), ": ", status.error_message());
  }
  static std::unique_ptr<Message> Request(const MethodDescriptor& method) {
    return std::unique_ptr<Message>(google::protobuf::MessageFactory::generated_factory()
                                        ->GetPrototype(method.input_type())
                                        ->New());
  }
  static std::unique_ptr<Message> RequestWith(const MethodDescriptor& method,
                                              const std::map<std::string, std::string>& texts) {
    auto request = Request(method);
    for (const auto& [name, text] : texts) SetText(name, text, request.get());
    return request;
  }
  // A field of text; of a message its name; where there is none, nothing.
  static void SetText(const std::string& name, const std::string& text, Message* message) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || field->is_repeated()) return;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      message->GetReflection()->SetString(message, field, text);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      SetText("name", text, message->GetReflection()->MutableMessage(message, field));
    }
  }
};

TEST_F(ApiConventionsTest, EveryEnumBeginsWithUnspecified) {
  std::vector<const EnumDescriptor*> enums;
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->enum_type_count(); ++i) enums.push_back(file->enum_type(i));
    for (int i = 0; i < file->message_type_count(); ++i) AddEnums(*file->message_type(i), &enums);
  }
  EXPECT_GT(enums.size(), 10u);
  for (const EnumDescriptor* type : enums) {
    const std::string prefix = PrefixOf(type->name());
    ASSERT_NE(type->FindValueByNumber(0), nullptr) << type->full_name();
    EXPECT_EQ(type->FindValueByNumber(0)->name(), prefix + "UNSPECIFIED");
    for (int i = 0; i < type->value_count(); ++i) {
      EXPECT_TRUE(absl::StartsWith(type->value(i)->name(), prefix)) << type->value(i)->full_name();
    }
  }
}

TEST_F(ApiConventionsTest, ListsHavePages) {
  int lists = 0;
  for (const MethodDescriptor* method : Methods()) {
    if (!absl::StartsWith(method->name(), "List")) continue;
    ++lists;
    const std::string& name = method->full_name();
    EXPECT_TRUE(Has(method->input_type(), "page_size", FieldDescriptor::CPPTYPE_INT32)) << name;
    EXPECT_TRUE(HasText(method->input_type(), "page_token")) << name;
    EXPECT_TRUE(HasText(method->output_type(), "next_page_token")) << name;
    EXPECT_TRUE(method->output_type()->field(0)->is_repeated()) << name;
    EXPECT_FALSE(method->server_streaming()) << name << ": lists never stream";
  }
  EXPECT_GE(lists, 6);
}

TEST_F(ApiConventionsTest, ANegativePageSizeIsRefusedByEveryList) {
  for (const MethodDescriptor* method : Methods()) {
    if (!absl::StartsWith(method->name(), "List")) continue;
    auto request = Request(*method);
    request->GetReflection()->SetInt32(request.get(),
                                       method->input_type()->FindFieldByName("page_size"), -1);
    EXPECT_EQ(Refusal(*method, *request), "page_size: must be at least 0, not -1")
        << method->full_name();
  }
}

// Nor is a token of another list, or one that somebody has made up, taken for a place in this one.
TEST_F(ApiConventionsTest, ForeignPageTokensAreRefusedByEveryList) {
  std::vector<std::string> tokens = {"jobs/1", "1", "n", "n5", "n5.0123456789abcdef", "~", "YWJj"};
  tokens.push_back(TokenOfName("workers/a", "another list"));
  tokens.push_back(TokenOfNumber(5, "another list"));
  for (const MethodDescriptor* method : Methods()) {
    if (!absl::StartsWith(method->name(), "List")) continue;
    for (const std::string& token : tokens) {
      EXPECT_THAT(Refusal(*method, *RequestWith(*method, {{"page_token", token}})),
                  ::testing::StartsWith("page_token: "))
          << method->full_name() << " with " << token;
    }
  }
}

// What is not there is asked for, or what is there is made again.
TEST_F(ApiConventionsTest, EveryRefusalHasAReason) {
  // These have nothing to refuse here but what is INVALID_ARGUMENT.
  const std::set<std::string> exempt = {"WhoAmI",         "CreateToken",    "SubmitJob",
                                        "SubmitJobArray", "CreateTemplate", "Session",
                                        "HasFiles",       "UploadFiles"};
  const std::map<std::string, std::string> names = {
      {"JobService", "jobs/999"},        {"QueueService", "queues/none"},
      {"WorkerService", "workers/none"}, {"CheckpointService", "checkpoints/999"},
      {"AuthService", "tokens/none"},    {"TemplateService", "projects/p/templates/none"},
      {"JoinService", "joinTokens/none"}};
  int refusals = 0;
  for (const MethodDescriptor* method : Methods()) {
    if (absl::StartsWith(method->name(), "List") || exempt.contains(method->name())) continue;
    const auto named = names.find(method->service()->name());
    auto request = RequestWith(*method, {{"name", named == names.end() ? "" : named->second},
                                         {"job", "jobs/999"},
                                         {"checkpoint", "checkpoints/999"},
                                         {"source", "checkpoints/999"},
                                         {"array", "arrays/999"},
                                         {"queue", "queues/none"},
                                         {"queue_id", "default"},
                                         {"template", "projects/p/templates/none"},
                                         {"key", "k"},
                                         {"reason", "why not"}});
    if (method->name() == "UpdateJob") {
      static_cast<v1::UpdateJobRequest*>(request.get())->mutable_update_mask()->add_paths("labels");
    }
    if (method->name() == "UpdateTemplate") {
      static_cast<v1::UpdateTemplateRequest*>(request.get())
          ->mutable_template_()
          ->set_spec_yaml("train: {steps: 1}");
    }
    const absl::Status status = FromGrpcStatus(Call(*method, *request));
    EXPECT_FALSE(status.ok()) << method->full_name();
    const v1::ErrorReason reason = ReasonOf(status);
    EXPECT_NE(reason, v1::ERROR_REASON_UNSPECIFIED) << method->full_name() << ": " << status;
    EXPECT_EQ(CodeOf(reason), status.code()) << method->full_name() << ": " << status;
    ++refusals;
  }
  EXPECT_GE(refusals, 30);
}

TEST_F(ApiConventionsTest, UpdatesHaveMasksAndEtags) {
  int updates = 0;
  for (const MethodDescriptor* method : Methods()) {
    if (!absl::StartsWith(method->name(), "Update")) continue;
    ++updates;
    const std::string& name = method->full_name();
    const FieldDescriptor* mask = method->input_type()->FindFieldByName("update_mask");
    ASSERT_NE(mask, nullptr) << name;
    EXPECT_EQ(mask->message_type()->full_name(), "google.protobuf.FieldMask") << name;
    EXPECT_TRUE(HasFlag(method->input_type(), "validate_only")) << name;
    EXPECT_TRUE(HasText(method->output_type(), "etag")) << name;
  }
  EXPECT_GE(updates, 3);
}

// Or the caller chooses the id; or, of a token, whose text is not kept, a second one does no harm.
TEST_F(ApiConventionsTest, WhatMakesSomethingCanBeRepeated) {
  const std::set<std::string> exempt = {"CreateToken", "CreateJoinToken"};
  for (const MethodDescriptor* method : Methods()) {
    const std::string& name = method->name();
    const bool submits = absl::StartsWith(name, "Submit") || absl::StartsWith(name, "Fork");
    const bool creates = absl::StartsWith(name, "Create");
    const Descriptor* input = method->input_type();
    if (submits) {
      EXPECT_TRUE(HasText(input, "request_id")) << name;
      EXPECT_TRUE(HasFlag(input, "validate_only")) << name;
    }
    if (!creates || exempt.contains(name)) continue;
    const std::string id = absl::StrCat(absl::AsciiStrToLower(name.substr(6)), "_id");
    EXPECT_TRUE(HasText(input, "request_id") || HasText(input, id)) << name;
    EXPECT_TRUE(HasFlag(input, "validate_only")) << name;
  }
}

TEST_F(ApiConventionsTest, NamesAreAsEverywhere) {
  for (const MethodDescriptor* method : Methods()) {
    const std::string& name = method->name();
    EXPECT_TRUE(absl::ascii_isupper(name[0]) && !absl::StrContains(name, '_')) << name;
    EXPECT_NE(FindRule(absl::StrCat("/", method->service()->full_name(), "/", name)), nullptr)
        << name << " has no rule";
    const Descriptor* input = method->input_type();
    // A stream of messages, and WatchJob, which asks as GetJob does.
    if (!method->client_streaming() && name != "WatchJob") {
      EXPECT_EQ(input->name(), name + "Request");
    }
    const bool by_name = absl::StartsWith(name, "Get") || absl::StartsWith(name, "Delete");
    if (by_name && name != "GetKey" && name != "GetChoices") {
      EXPECT_TRUE(HasText(input, "name")) << name;
    }
    for (int i = 0; i < input->field_count(); ++i) {
      const std::string& field = input->field(i)->name();
      EXPECT_EQ(field, absl::AsciiStrToLower(field)) << input->full_name();
      if (absl::EndsWith(field, "_time")) {
        ASSERT_NE(input->field(i)->message_type(), nullptr) << field;
        EXPECT_EQ(input->field(i)->message_type()->full_name(), "google.protobuf.Timestamp");
      }
    }
  }
}

}  // namespace
}  // namespace milepost::coordinator
