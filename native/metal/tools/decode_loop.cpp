// A plain llama.cpp loop without anything of ours: the baseline of the benchmarks.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "llama_session.h"

namespace muser::tools {
namespace {

constexpr const char* kHelp =
    "usage: muser-decode-loop MODEL.gguf [options]\n"
    "\n"
    "Fills each sequence to a depth, then decodes all of them together, and reports tokens a second.\n"
    "  --depth D      tokens in each sequence before decoding (2048)\n"
    "  --decode N     decode steps that are measured (128), after 16 that are not\n"
    "  --seqs S       sequences decoded together (1)\n"
    "  --seq-ids I    sequence ids of the context (S + 1, as the engine has)\n"
    "  --cells C      cells of the context (what the sequences need)\n"
    "  --chunk N      tokens of one prefill call (512)\n"
    "  --threads T    threads (1)\n"
    "  --no-flash     without flash attention\n"
    "  --json         one line of JSON\n";

constexpr uint32_t kWarmUpSteps = 16;
constexpr uint32_t kChunkLimit = 2048;

struct Plan {
  uint32_t depth;
  uint32_t steps;
  uint32_t sequences;
  uint32_t sequence_ids;
  uint32_t cells;
  uint32_t chunk;
  uint32_t threads;
  bool flash_attention;
};

Plan read_plan(const Arguments& arguments) {
  Plan plan{};
  plan.depth = arguments.number("depth", 2048, 1, 1u << 20);
  plan.steps = arguments.number("decode", 128, 1, 1u << 20);
  plan.sequences = arguments.number("seqs", 1, 1, 64);
  plan.sequence_ids = arguments.number("seq-ids", plan.sequences + 1, plan.sequences, 256);
  const uint32_t needed = plan.sequences * (plan.depth + kWarmUpSteps + plan.steps);
  plan.cells = arguments.number("cells", needed, needed, 1u << 24);
  plan.chunk = arguments.number("chunk", 512, 1, kChunkLimit);
  plan.threads = arguments.number("threads", 1, 1, 256);
  plan.flash_attention = !arguments.has("no-flash");
  return plan;
}

/// Ordinary tokens in a fixed order.
llama_token token_at(uint32_t position, int32_t vocabulary) {
  return static_cast<llama_token>((position * 2654435761u >> 7) % static_cast<uint32_t>(vocabulary));
}

double prefill_seconds(llama_context* context, const Plan& plan, int32_t vocabulary) {
  const double start = seconds_now();
  Batch batch(plan.chunk);
  for (uint32_t sequence = 0; sequence < plan.sequences; ++sequence) {
    for (uint32_t from = 0; from < plan.depth; from += plan.chunk) {
      const uint32_t to = std::min(plan.depth, from + plan.chunk);
      batch.clear();
      for (uint32_t i = from; i < to; ++i) {
        batch.add(token_at(i, vocabulary), i, static_cast<llama_seq_id>(sequence), i + 1 == plan.depth);
      }
      batch.run(context);
    }
  }
  llama_synchronize(context);
  return seconds_now() - start;
}

double decode_seconds(llama_context* context, const Plan& plan, int32_t vocabulary, uint32_t from, uint32_t steps) {
  const double start = seconds_now();
  Batch batch(plan.sequences);
  for (uint32_t position = from; position < from + steps; ++position) {
    batch.clear();
    for (uint32_t sequence = 0; sequence < plan.sequences; ++sequence) {
      batch.add(token_at(position, vocabulary), position, static_cast<llama_seq_id>(sequence), true);
    }
    batch.run(context);
    llama_get_logits_ith(context, -1);  // waits for the result, as a sampler does
  }
  return seconds_now() - start;
}

int run(int count, char** values) {
  const Arguments arguments(count, values, {"depth", "decode", "seqs", "seq-ids", "cells", "chunk", "threads"},
                            {"no-flash", "json"});
  const std::string path = arguments.positional(1)[0];
  const Plan plan = read_plan(arguments);
  start_llama();
  const ModelPointer model = load_model(path);
  const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
  llama_context_params params = context_params(plan.cells, plan.sequence_ids, plan.threads, plan.flash_attention);
  const ContextPointer context = make_context(model.get(), params);

  const double prefill = prefill_seconds(context.get(), plan, vocabulary);
  decode_seconds(context.get(), plan, vocabulary, plan.depth, kWarmUpSteps);
  const double decode = decode_seconds(context.get(), plan, vocabulary, plan.depth + kWarmUpSteps, plan.steps);
  const double prefill_rate = plan.sequences * plan.depth / prefill;
  const double decode_rate = plan.sequences * plan.steps / decode;
  if (arguments.has("json")) {
    std::printf(
        "{\"depth\":%u,\"sequences\":%u,\"cells\":%u,\"chunkTokens\":%u,\"threads\":%u,\"flashAttention\":%s,"
        "\"prefillTokensPerSecond\":%.1f,\"decodeTokensPerSecond\":%.1f}\n",
        plan.depth, plan.sequences, plan.cells, plan.chunk, plan.threads, plan.flash_attention ? "true" : "false",
        prefill_rate, decode_rate);
  } else {
    std::printf("prefill %.1f tokens/s, decode at %u: %.1f tokens/s\n", prefill_rate, plan.depth, decode_rate);
  }
  return 0;
}

}  // namespace
}  // namespace muser::tools

int main(int count, char** values) {
  return muser::tools::run_tool(count, values, muser::tools::kHelp, muser::tools::run);
}
