MODULES += lib/llm
lib/llm_DEPS := lib/json lib/base
lib/llm_PKGS := libpcre2-8 libutf8proc openssl
