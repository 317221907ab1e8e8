"""A router that does not see the model's files takes the tokenizer from a worker that has them."""
from conftest import wait_for


def test_the_tokenizer_comes_from_a_worker_when_the_source_is_out_of_sight(fleet):
    f = fleet(unified=1, start_router=False)
    real, f.model_file = f.model_file, "/nowhere/model.gguf"
    f.start_router()
    answer = f.client().chat.completions.create(model=f.model, max_tokens=8, temperature=0,
                                                messages=[{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.choices[0].message.content
    f.model_file = real


def test_a_router_without_worker_and_file_says_what_it_misses(fleet):
    f = fleet(unified=1, start_router=False)
    for w in f.workers.values():
        w.kill()
    f.model_file, f.wait_routable = "/nowhere/model.gguf", lambda: None  # it never gets ready
    f.start_router()
    wait_for(lambda: "no worker has told its tokenizer yet" in f.router.log(), 20)
