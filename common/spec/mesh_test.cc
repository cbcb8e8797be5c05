// resources.mesh: what it may divide, and what is said of the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/auto_fields.h"
#include "common/spec/overrides.h"
#include "common/spec/parse.h"
#include "common/spec/sizes.h"
#include "common/spec/spec_fixture.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::JobSpec;

// 4 ranks, of which each two divide a GPT-2 of 4 heads.
template <typename Change>
JobSpec MeshSpec(const Change& change) {
  auto spec = ParseJobSpecYaml(kSpecYaml, "small.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec->mutable_resources()->set_ranks(4);
  spec->mutable_resources()->mutable_mesh()->set_tensor(2);
  change(&*spec);
  NormalizeJobSpec(&*spec);
  return *std::move(spec);
}

TEST(MeshTest, TensorRanksShareTheBatch) {
  const JobSpec spec = MeshSpec([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().batch().accumulation(), 2);  // 16 = 4 * 2 * 2 data ranks
}

// So that specs from before there were meshes have the same digest.
TEST(MeshTest, OneTensorRankIsNoMesh) {
  const auto tensor = [](int ranks) {
    return MeshSpec([=](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_tensor(ranks); });
  };
  EXPECT_FALSE(tensor(1).resources().has_mesh());
  EXPECT_EQ(SpecDigest(tensor(1)),
            SpecDigest(MeshSpec([](JobSpec* s) { s->mutable_resources()->clear_mesh(); })));
  EXPECT_THAT(ValidateJobSpec(tensor(0)).message(), HasSubstr("resources.mesh.tensor"));
  EXPECT_THAT(ValidateJobSpec(tensor(-2)).message(), HasSubstr("resources.mesh.tensor"));
}

// What was trained on a mesh goes on without one.
TEST(MeshTest, TheStateIsThatOfAnyMesh) {
  EXPECT_EQ(StateDigest(MeshSpec([](JobSpec*) {})),
            StateDigest(MeshSpec([](JobSpec* s) { s->mutable_resources()->clear_mesh(); })));
}

TEST(MeshTest, SaysWhatItMustDivideAndTheNearestThatDoes) {
  const auto message = [](const auto& change) {
    return std::string(ValidateJobSpec(MeshSpec(change)).message());
  };
  EXPECT_THAT(message([](JobSpec* s) { s->mutable_resources()->set_ranks(5); }),
              HasSubstr("must divide resources.ranks (5), got 2; nearest: 1"));
  EXPECT_THAT(message([](JobSpec* s) {
                s->mutable_resources()->set_ranks(8);
                s->mutable_resources()->mutable_mesh()->set_tensor(8);
                s->mutable_train()->mutable_batch()->set_global(8);
              }),
              HasSubstr("must divide model.gpt2.heads (4), got 8; nearest: 4"));
}

// With fewer heads of keys than tensor ranks neighbours have the same one.
TEST(MeshTest, TensorRanksShareHeadsOfKeys) {
  const auto spec = [](int kv_heads, int tensor) {
    return MeshSpec([=](JobSpec* s) {
      v1::LlamaSpec* model = s->mutable_model()->mutable_llama();
      model->set_layers(2);
      model->set_width(96);
      model->set_heads(12);
      model->set_kv_heads(kv_heads);
      model->set_hidden(192);
      model->set_context(64);
      model->set_vocabulary(256);
      s->mutable_resources()->set_ranks(tensor);
      s->mutable_resources()->mutable_mesh()->set_tensor(tensor);
    });
  };
  for (const auto& [kv_heads, tensor] : {std::pair(1, 4), {2, 4}, {2, 12}, {6, 12}, {6, 3}}) {
    EXPECT_EQ(ValidateJobSpec(spec(kv_heads, tensor)), absl::OkStatus()) << kv_heads << tensor;
  }
  EXPECT_THAT(ValidateJobSpec(spec(4, 6)).message(),
              HasSubstr("must divide model.llama.kv_heads (4) or be a multiple of it, got 6; "
                        "nearest: 2"));
  // More than a host's ranks are for --set alone.
  EXPECT_THAT(PossibleTensors(spec(2, 12)), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(PossibleTensors(spec(12, 12)), ElementsAre(1, 2, 3, 4, 6, 12));
}

TEST(MeshTest, ElasticBoundsAreWholeGroups) {
  const auto message = [](int least) {
    return std::string(ValidateJobSpec(MeshSpec([=](JobSpec* s) {
                         s->mutable_resources()->set_min_ranks(least);
                         s->mutable_resources()->set_max_ranks(8);
                       })).message());
  };
  EXPECT_EQ(message(2), "");
  EXPECT_THAT(message(3), HasSubstr("resources.min_ranks: must be a multiple of "
                                    "resources.mesh.tensor (2), got 3"));
}

TEST(MeshTest, SaysOfBatchesWhoSharesThem) {
  EXPECT_THAT(ValidateJobSpec(MeshSpec([](JobSpec* s) {
                s->mutable_train()->mutable_batch()->set_global(12);
              })).message(),
              HasSubstr("must be a multiple of micro * (ranks / tensor) = 8, got 12"));
}

// A stored spec has the accumulation that its mesh gave.
TEST(MeshTest, AnotherMeshByOverridesHasAnotherAccumulation) {
  JobSpec spec = MeshSpec([](JobSpec*) {});
  auto one = ParseOverride("resources.mesh.tensor=4");
  ASSERT_TRUE(one.ok());
  Overrides overrides;
  *overrides.Add() = *one;
  ASSERT_EQ(ApplyOverrides(overrides, "--set", &spec), absl::OkStatus());
  NormalizeJobSpec(&spec);
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().batch().accumulation(), 4);
}

// 4 ranks in pipelines of 2.
template <typename Change>
JobSpec PipelineSpec(const Change& change) {
  return MeshSpec([&](JobSpec* s) {
    s->mutable_resources()->mutable_mesh()->clear_tensor();
    s->mutable_resources()->mutable_mesh()->set_pipeline(2);
    change(s);
  });
}

TEST(MeshTest, PipelinesShareTheBatch) {
  const JobSpec spec = PipelineSpec([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().batch().accumulation(), 2);
  EXPECT_EQ(spec.resources().mesh().tensor(), 1);
  EXPECT_EQ(spec.resources().mesh().schedule(), v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(DataRanks(spec.resources()), 2);
  EXPECT_EQ(StateDigest(spec),
            StateDigest(MeshSpec([](JobSpec* s) { s->mutable_resources()->clear_mesh(); })));
}

// So that specs from before there were pipelines have the same digest.
TEST(MeshTest, OneStageIsNoPipeline) {
  const JobSpec spec =
      MeshSpec([](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_pipeline(1); });
  EXPECT_EQ(SpecDigest(spec), SpecDigest(MeshSpec([](JobSpec*) {})));
}

TEST(MeshTest, SaysWhatAPipelineBreaks) {
  const auto message = [](const auto& change) {
    return std::string(ValidateJobSpec(PipelineSpec(change)).message());
  };
  const auto stages = [](int count) {
    return [=](JobSpec* s) {
      s->mutable_resources()->set_ranks(6);
      s->mutable_train()->mutable_batch()->set_global(24);
      s->mutable_resources()->mutable_mesh()->set_pipeline(count);
    };
  };
  EXPECT_THAT(
      message(stages(4)),
      HasSubstr("resources.mesh.pipeline: must divide resources.ranks (6), got 4; nearest"));
  EXPECT_THAT(message(stages(6)), HasSubstr("has more stages (6) than the model has layers"));
  EXPECT_THAT(message(stages(65)), HasSubstr("resources.mesh.pipeline"));
  EXPECT_THAT(message([](JobSpec* s) {  // whose product is no int
                s->mutable_resources()->mutable_mesh()->set_tensor(65536);
                s->mutable_resources()->mutable_mesh()->set_pipeline(65536);
                s->mutable_resources()->set_min_ranks(1);
              }),
              HasSubstr("resources.mesh.tensor"));
  EXPECT_EQ(message([](JobSpec* s) { s->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA); }),
            "");
  EXPECT_THAT(message([](JobSpec* s) {
                v1::ParameterGroupSpec& group =
                    *s->mutable_train()->mutable_optimizer()->add_groups();
                group.set_match("*");
                group.set_freeze(true);
              }),
              HasSubstr("frozen"));
  EXPECT_THAT(message([](JobSpec* s) { s->mutable_checkpoint()->set_redundancy(1); }),
              HasSubstr("resources.mesh.pipeline: is not for checkpoint.redundancy"));
  EXPECT_THAT(message([](JobSpec* s) {
                s->mutable_resources()->set_min_ranks(3);
                s->mutable_resources()->set_max_ranks(8);
              }),
              HasSubstr("must be a multiple of resources.mesh.pipeline (2), got 3"));
  EXPECT_THAT(
      message([](JobSpec* s) {
        s->mutable_resources()->mutable_mesh()->clear_pipeline();
        s->mutable_resources()->mutable_mesh()->set_schedule(v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
      }),
      HasSubstr("resources.mesh.schedule: is for resources.mesh.pipeline above 1"));
  EXPECT_THAT(message([](JobSpec* s) {
                s->mutable_train()->mutable_batch()->set_micro(1);
                s->mutable_train()->mutable_batch()->set_global(2 * 257);
              }),
              HasSubstr("at most 256 micro-batches"));
}

// Of 6 layers; `chunks`: 0 is the default.
JobSpec InterleavedSpec(int32_t chunks) {
  return PipelineSpec([&](JobSpec* s) {
    s->mutable_model()->mutable_gpt2()->set_layers(6);
    v1::MeshSpec* mesh = s->mutable_resources()->mutable_mesh();
    mesh->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
    if (chunks != 0) mesh->set_chunks(chunks);
  });
}

TEST(MeshTest, ChunksAreOfInterleavedPipelines) {
  const JobSpec spec = InterleavedSpec(0);
  EXPECT_EQ(spec.resources().mesh().chunks(), 2);
  EXPECT_EQ(PipelineChunks(spec.resources()), 2);
  EXPECT_EQ(ValidateJobSpec(InterleavedSpec(3)), absl::OkStatus());
  EXPECT_THAT(ValidateJobSpec(InterleavedSpec(4)).message(),
              HasSubstr("resources.mesh.chunks: times pipeline (2) is more than the model's layers "
                        "(6), got 4; nearest: 3"));
  for (const int32_t chunks : {1, 17}) {
    EXPECT_THAT(ValidateJobSpec(InterleavedSpec(chunks)).message(),
                HasSubstr("resources.mesh.chunks: expected 2 to 16, got"));
  }
  JobSpec long_one = InterleavedSpec(2);
  long_one.mutable_resources()->mutable_mesh()->set_pipeline(4);
  EXPECT_THAT(ValidateJobSpec(long_one).message(),
              HasSubstr("nearest: resources.mesh.schedule: 1f1b or zero_bubble"));
}

// So that specs from before there were chunks keep their digests.
TEST(MeshTest, OtherSchedulesHaveNoChunks) {
  const JobSpec plain = PipelineSpec([](JobSpec*) {});
  EXPECT_FALSE(plain.resources().mesh().has_chunks());
  EXPECT_EQ(PipelineChunks(plain.resources()), 1);
  const auto of_six =
      PipelineSpec([](JobSpec* s) { s->mutable_model()->mutable_gpt2()->set_layers(6); });
  EXPECT_EQ(StateDigest(InterleavedSpec(3)), StateDigest(of_six));
  const JobSpec given =
      PipelineSpec([](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_chunks(2); });
  EXPECT_THAT(ValidateJobSpec(given).message(),
              HasSubstr("resources.mesh.chunks: is for resources.mesh.schedule: interleaved"));
}

TEST(MeshTest, AnotherScheduleByOverridesHasNoChunks) {
  const auto with = [](const char* text) {
    JobSpec spec = InterleavedSpec(2);
    auto one = ParseOverride(text);
    EXPECT_TRUE(one.ok());
    Overrides overrides;
    *overrides.Add() = *one;
    EXPECT_EQ(ApplyOverrides(overrides, "--set", &spec), absl::OkStatus());
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec.resources().mesh();
  };
  EXPECT_FALSE(with("resources.mesh.schedule=zero_bubble").has_chunks());
  EXPECT_EQ(with("resources.mesh.schedule=interleaved").chunks(), 2);
  EXPECT_EQ(with("resources.mesh.chunks=3").chunks(), 3);
  EXPECT_FALSE(with("resources.mesh.pipeline=1").has_chunks());
}

// 4 ranks, of which each two have a half of each sequence.
template <typename Change>
JobSpec ContextSpec(const Change& change) {
  return MeshSpec([&](JobSpec* s) {
    s->mutable_resources()->mutable_mesh()->clear_tensor();
    s->mutable_resources()->mutable_mesh()->set_context(2);
    change(s);
  });
}

TEST(MeshTest, ContextRanksShareTheBatch) {
  const JobSpec spec = ContextSpec([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EXPECT_EQ(spec.train().batch().accumulation(), 2);  // 16 = 4 * 2 * 2 data ranks
  EXPECT_EQ(spec.resources().mesh().tensor(), 1);
  EXPECT_EQ(DataRanks(spec.resources()), 2);
  EXPECT_EQ(StateRanks(spec.resources()), 4);
  EXPECT_EQ(StateDigest(spec),
            StateDigest(MeshSpec([](JobSpec* s) { s->mutable_resources()->clear_mesh(); })));
  const auto back = ParseJobSpecYaml(MessageToYaml(spec), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->resources().mesh().context(), 2);
}

// So that specs from before there were context ranks have the same digest.
TEST(MeshTest, OneContextRankIsNone) {
  const JobSpec spec =
      MeshSpec([](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_context(1); });
  EXPECT_EQ(SpecDigest(spec), SpecDigest(MeshSpec([](JobSpec*) {})));
  EXPECT_FALSE(
      ContextSpec([](JobSpec* s) { s->mutable_resources()->mutable_mesh()->set_context(1); })
          .resources()
          .has_mesh());
}

TEST(MeshTest, SaysWhatContextRanksBreak) {
  const auto message = [](const auto& change) {
    return std::string(ValidateJobSpec(ContextSpec(change)).message());
  };
  const auto context = [](int ranks, int count, int length = 24) {
    return [=](JobSpec* s) {
      s->mutable_resources()->set_ranks(ranks);
      s->mutable_train()->mutable_batch()->set_global(48);
      s->mutable_data()->set_sequence_length(length);
      s->mutable_resources()->mutable_mesh()->set_context(count);
    };
  };
  EXPECT_EQ(message(context(12, 4)), "");
  EXPECT_THAT(message(context(6, 4)),
              HasSubstr("resources.mesh.context: must divide ranks (6), got 4; nearest: 3"));
  EXPECT_THAT(message(context(12, 4, 30)),
              HasSubstr("must divide data.sequence_length (30), got 4; nearest: 3"));
  EXPECT_EQ(message(context(12, 3)), "");  // of 4 heads: three ranks have all, and parts of queries
  EXPECT_THAT(message(context(12, 1025)), HasSubstr("resources.mesh.context"));
  EXPECT_EQ(message([](JobSpec* s) {
              s->mutable_resources()->set_ranks(8);
              s->mutable_resources()->mutable_mesh()->set_tensor(2);
              s->mutable_resources()->mutable_mesh()->set_context(4);
            }),
            "");  // of two heads
  EXPECT_THAT(message([](JobSpec* s) {
                s->mutable_resources()->set_min_ranks(3);
                s->mutable_resources()->set_max_ranks(8);
              }),
              HasSubstr("must be a multiple of resources.mesh.context (2), got 3"));
  EXPECT_THAT(message([](JobSpec* s) { s->mutable_train()->mutable_batch()->set_global(6); }),
              HasSubstr("multiple of micro * (ranks / context) = 8"));
}

TEST(MeshTest, KnowsWhichContextRanksThereMayBe) {
  const auto possible = [](int ranks, int tensor, const auto& change) {
    return PossibleContexts(ContextSpec([&](JobSpec* s) {
      s->mutable_resources()->set_ranks(ranks);
      s->mutable_resources()->mutable_mesh()->set_tensor(tensor);
      s->mutable_train()->mutable_batch()->set_global(48);
      change(s);
    }));
  };
  const auto as_it_is = [](JobSpec* s) { s->mutable_data()->set_sequence_length(24); };
  EXPECT_THAT(possible(12, 1, as_it_is), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(possible(12, 2, as_it_is), ElementsAre(1, 2, 3, 6));
  EXPECT_THAT(possible(12, 1, [](JobSpec* s) { s->mutable_data()->set_sequence_length(22); }),
              ElementsAre(1, 2));
  EXPECT_THAT(possible(12, 1, [](JobSpec* s) { s->mutable_train()->mutable_dpo(); }),
              ElementsAre(1));
}

// Heads of keys that are fewer than ranks are shared, if each has as many. Else queries have parts.
TEST(MeshTest, KnowsWhichContextRanksDivideTheHeads) {
  const auto dividing = [](int kv_heads, int tensor) {
    JobSpec spec;
    spec.mutable_model()->mutable_llama()->set_heads(12);
    spec.mutable_model()->mutable_llama()->set_kv_heads(kv_heads);
    spec.mutable_resources()->mutable_mesh()->set_tensor(tensor);
    std::vector<int> contexts;
    for (int context = 1; context <= 24; ++context) {
      if (ContextDividesHeads(spec, context)) contexts.push_back(context);
    }
    return contexts;
  };
  EXPECT_THAT(dividing(1, 1), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(dividing(2, 1), ElementsAre(1, 2, 4, 6, 12));
  EXPECT_THAT(dividing(4, 1), ElementsAre(1, 2, 4, 12));
  EXPECT_THAT(dividing(4, 2), ElementsAre(1, 2, 6));
  EXPECT_THAT(dividing(1, 2), ElementsAre(1, 2, 3, 6));
}

TEST(MeshTest, StagesHaveContextRanks) {
  const auto spec = [](int ranks) {
    return ContextSpec([=](JobSpec* s) {
      s->mutable_resources()->set_ranks(ranks);
      s->mutable_resources()->mutable_mesh()->set_pipeline(2);
    });
  };
  EXPECT_EQ(ValidateJobSpec(spec(8)), absl::OkStatus());
  EXPECT_EQ(DataRanks(spec(8).resources()), 2);
  EXPECT_EQ(StateRanks(spec(8).resources()), 4);
  EXPECT_THAT(ValidateJobSpec(spec(6)).message(),
              HasSubstr("resources.mesh.context: must divide (ranks / pipeline) (3), got 2"));
}

// Shards go over data and context ranks.
TEST(MeshTest, ShardGroupsAreOfContextRanksToo) {
  const auto message = [](int group) {
    return std::string(ValidateJobSpec(ContextSpec([=](JobSpec* s) {
                         s->mutable_train()->mutable_zero()->set_group(group);
                       })).message());
  };
  EXPECT_EQ(message(4), "");
  EXPECT_THAT(message(3), HasSubstr("train.zero.group: must divide resources.ranks (4), got 3"));
}

TEST(MeshTest, RefusesWhatContextRanksAreNotFor) {
  const std::pair<const char*, void (*)(JobSpec*)> cases[] = {
      {"train.dpo", [](JobSpec* s) { s->mutable_train()->mutable_dpo(); }},
      {"images", [](JobSpec* s) { s->mutable_model()->mutable_resnet(); }},
  };
  for (const auto& [what, change] : cases) {
    const absl::Status status = ValidateJobSpec(ContextSpec(change));
    EXPECT_THAT(status.message(), HasSubstr("resources.mesh.context: is not for ")) << what;
    EXPECT_THAT(status.message(), HasSubstr(what));
  }
  EXPECT_THAT(ValidateJobSpec(ContextSpec([](JobSpec* s) {
                s->mutable_resources()->mutable_mesh()->set_tensor(kAuto);
              })).message(),
              HasSubstr("resources.mesh.tensor: auto chooses no context: give a number"));
  // What tensor ranks alone do not have.
  EXPECT_EQ(ValidateJobSpec(ContextSpec(
                [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP16); })),
            absl::OkStatus());
  EXPECT_EQ(ValidateJobSpec(ContextSpec(
                [](JobSpec* s) { s->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA); })),
            absl::OkStatus());
}

// How many ranks share the batch is open until the number is chosen.
TEST(MeshTest, AutoLeavesTheBatchOpen) {
  const auto spec = [](const auto& change) {
    return MeshSpec([&](JobSpec* s) {
      s->mutable_resources()->mutable_mesh()->set_tensor(kAuto);
      change(s);
    });
  };
  const JobSpec open = spec([](JobSpec*) {});
  EXPECT_EQ(ValidateJobSpec(open), absl::OkStatus());
  EXPECT_TRUE(HasAutoFields(open));
  EXPECT_FALSE(open.train().batch().has_accumulation());
  EXPECT_THAT(ValidateJobSpec(spec([](JobSpec* s) {
                s->mutable_train()->mutable_batch()->clear_global();
                s->mutable_train()->mutable_batch()->set_accumulation(2);
              })).message(),
              HasSubstr("with resources.mesh.tensor: auto give global and micro"));
  EXPECT_THAT(ValidateJobSpec(spec([](JobSpec* s) {
                s->mutable_model()->mutable_lora()->set_rank(4);
              })).message(),
              HasSubstr("resources.mesh.tensor: is not for model.lora"));
  // A group that one of the numbers has, and bounds that one of them has.
  EXPECT_EQ(ValidateJobSpec(spec([](JobSpec* s) {
              s->mutable_train()->mutable_zero()->set_group(3);
              s->mutable_resources()->set_min_ranks(3);
            })),
            absl::OkStatus());
  const auto back = ParseJobSpecYaml(MessageToYaml(open), "f.yaml");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->resources().mesh().tensor(), kAuto);
}

TEST(MeshTest, TensorRanksDivideRanksHeadsAndWidths) {
  const auto possible = [](const auto& change) { return PossibleTensors(MeshSpec(change)); };
  EXPECT_THAT(possible([](JobSpec*) {}), ::testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(possible([](JobSpec* s) { s->mutable_resources()->set_ranks(6); }),
              ::testing::ElementsAre(1, 2));
  EXPECT_THAT(possible([](JobSpec* s) { s->mutable_model()->mutable_lora()->set_rank(4); }),
              ::testing::ElementsAre(1));
}

TEST(MeshTest, RefusesWhatItIsNotFor) {
  const std::pair<const char*, void (*)(JobSpec*)> cases[] = {
      {"precision", [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP16); }},
      {"precision", [](JobSpec* s) { s->mutable_train()->set_precision(v1::PRECISION_FP8); }},
      {"optimizer.type",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_MUON);
       }},
      {"optimizer.type",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW_8BIT);
       }},
      {"rounds at random",
       [](JobSpec* s) {
         s->mutable_train()->mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16);
       }},
      {"train.memory", [](JobSpec* s) { s->mutable_train()->set_memory(v1::MEMORY_USE_LOW); }},
      {"offload", [](JobSpec* s) { s->mutable_train()->mutable_offload()->set_activations(true); }},
      {"redundancy", [](JobSpec* s) { s->mutable_checkpoint()->set_redundancy(1); }},
      {"lora", [](JobSpec* s) { s->mutable_model()->mutable_lora()->set_rank(4); }},
  };
  for (const auto& [what, change] : cases) {
    const absl::Status status = ValidateJobSpec(MeshSpec(change));
    EXPECT_THAT(status.message(), HasSubstr("resources.mesh.tensor: ")) << what;
    EXPECT_THAT(status.message(), HasSubstr(what));
  }
}

}  // namespace
}  // namespace milepost
