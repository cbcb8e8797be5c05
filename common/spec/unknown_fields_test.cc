#include "common/spec/unknown_fields.h"

#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

constexpr int kLater = 1999;  // the number of a field that a later version has

void AddLaterField(google::protobuf::Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(kLater, 7);
}

TEST(UnknownFields, AreFoundWhereverTheyAre) {
  v1::ModelSpec model;
  model.mutable_llama()->mutable_window()->set_positions(4);
  model.add_heads()->set_name("a");
  model.add_heads()->set_name("b");
  EXPECT_EQ(UnknownField(model, "model"), std::nullopt);
  EXPECT_EQ(CheckModelIsKnown(model), absl::OkStatus());

  v1::ModelSpec head = model;
  AddLaterField(head.mutable_heads(1));
  EXPECT_EQ(UnknownField(head, "model"), "model.heads");
  v1::ModelSpec window = model;
  AddLaterField(window.mutable_llama()->mutable_window());
  EXPECT_EQ(UnknownField(window, "model"), "model.llama.window");
  AddLaterField(&model);
  EXPECT_EQ(UnknownField(model, "model"), "model");
}

// What another version submits comes as bytes.
TEST(UnknownFields, OfASpecOnTheWireAreRefused) {
  v1::ModelSpec later;
  later.mutable_llama()->set_layers(2);
  AddLaterField(later.mutable_llama());
  v1::ModelSpec here;
  ASSERT_TRUE(here.ParseFromString(later.SerializeAsString()));
  const absl::Status status = CheckModelIsKnown(here);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("model.llama has a field or a choice that this version"));

  // A choice of a field that is known.
  v1::ModelSpec choice;
  choice.mutable_llama()->mutable_rope_scaling()->set_type(
      static_cast<v1::RopeScalingSpec::Type>(99));
  EXPECT_EQ(UnknownField(choice, "model"), std::nullopt);
  EXPECT_THAT(std::string(CheckModelIsKnown(choice).message()),
              testing::HasSubstr("model.llama.rope_scaling.type has a field or a choice"));
}

}  // namespace
}  // namespace milepost
