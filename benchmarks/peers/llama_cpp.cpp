// Reads a prompt and writes tokens greedily with llama.cpp; a line of JSON for each round, see language_models.py.
// lines MODEL THREADS PROMPT_TOKENS NEW_TOKENS ROUNDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "llama.h"

static double wall() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double cpu() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static llama_token best(llama_context *context, int count) {
  const float *logits = llama_get_logits_ith(context, -1);
  int found = 0;
  for (int i = 1; i < count; i++)
    if (logits[i] > logits[found]) found = i;
  return found;
}

int main(int, char **argv) {
  const int threads = atoi(argv[2]), prompt = atoi(argv[3]), fresh = atoi(argv[4]), rounds = atoi(argv[5]);
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  const double begin = wall();
  llama_backend_init();
  llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = prompt + fresh;
  params.n_threads = params.n_threads_batch = threads;
  llama_context *context = llama_init_from_model(model, params);
  const double load = wall() - begin;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::vector<llama_token> ids(prompt);
  for (int i = 0; i < prompt; i++) ids[i] = (i * 7919 + 13) % vocabulary;
  for (int round = 0; round < rounds; round++) {
    llama_memory_clear(llama_get_memory(context), true);
    const double w0 = wall(), c0 = cpu();
    llama_decode(context, llama_batch_get_one(ids.data(), prompt));
    llama_token token = best(context, vocabulary);
    const double w1 = wall(), c1 = cpu();
    for (int i = 1; i < fresh; i++) {
      llama_decode(context, llama_batch_get_one(&token, 1));
      token = best(context, vocabulary);
    }
    printf("{\"load\": %f, \"prefill\": %f, \"decode\": %f, \"prefill_cpu\": %f, \"decode_cpu\": %f}\n", load,
           w1 - w0, wall() - w1, c1 - c0, cpu() - c1);
  }
}
