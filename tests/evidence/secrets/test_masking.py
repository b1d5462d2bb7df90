"""Secrets by their name, by their form and, in what is made for pasting, by their looks; and what is none of these."""

from __future__ import annotations

import json
import random
import string
import time
from pathlib import Path

import pytest

from nsadiag.evidence.secrets.masking import mask_command, mask_text, mask_variables, secret_values
from nsadiag.evidence.secrets.published import MASK, is_secret_name, mask_likely

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
ALNUM, HEX, BASE32 = LOWER + UPPER + DIGITS, DIGITS + "abcdef", UPPER + "234567"


def of(letters: str, length: int, seed: object = 0) -> str:
    """Made up here, so that no scanner of repositories takes the table for what it is about."""
    draw = random.Random(f"{letters}{length}{seed}")
    return "".join(draw.choice(letters) for _ in range(length))


# What stands in front, and of what letters and length the rest is.
TOKENS = [
    ("AKIA", BASE32, 16), ("ASIA", BASE32, 16), ("ABIA", BASE32, 16), ("ACCA", BASE32, 16), ("AIza", ALNUM, 35),
    ("ya29.", ALNUM, 60), ("GOCSPX-", ALNUM, 28), ("LTAI", ALNUM, 20), ("AKID", ALNUM, 32), ("dop_v1_", HEX, 64),
    ("doo_v1_", HEX, 64), ("dor_v1_", HEX, 64), ("HRKU-", ALNUM, 36), ("fo1_", ALNUM, 43), ("FlyV1 ", ALNUM, 60),
    ("nfp_", ALNUM, 36), ("rnd_", ALNUM, 32), ("tskey-auth-", ALNUM, 32), ("sbp_", HEX, 40), ("pscale_tkn_", ALNUM, 43),
    ("pscale_pw_", ALNUM, 43), ("pscale_oauth_", ALNUM, 43), ("napi_", ALNUM, 64), ("dp.pt.", ALNUM, 43),
    ("dp.ct.", ALNUM, 43), ("dp.sa.", ALNUM, 43), ("dp.scim.", ALNUM, 43), ("dp.audit.", ALNUM, 43),
    ("ghp_", ALNUM, 36), ("gho_", ALNUM, 36), ("ghu_", ALNUM, 36), ("ghs_", ALNUM, 36), ("ghr_", ALNUM, 36),
    ("github_pat_", ALNUM, 82), ("glpat-", ALNUM, 20), ("gldt-", ALNUM, 20), ("glrt-", ALNUM, 20), ("glcbt-", ALNUM, 20),
    ("glptt-", HEX, 40), ("glft-", ALNUM, 20), ("glagent-", ALNUM, 50), ("glsoat-", ALNUM, 20), ("gloas-", HEX, 64),
    ("glimt-", ALNUM, 25), ("GR1348941", ALNUM, 20), ("ATBB", ALNUM, 32), ("npm_", ALNUM, 36), ("pypi-AgEIcHlwaS5vcmc", ALNUM, 60),
    ("rubygems_", HEX, 48), ("cio", ALNUM, 32), ("oy2", LOWER + DIGITS, 43), ("dckr_pat_", ALNUM, 27), ("dckr_oat_", ALNUM, 32),
    ("CLOJARS_", LOWER + DIGITS, 60), ("CCIPAT_", ALNUM, 64), ("bkua_", HEX, 40), ("sgp_", HEX, 40), ("squ_", HEX, 40),
    ("sqp_", HEX, 40), ("sqa_", HEX, 40), ("sntrys_", ALNUM, 90), ("sntryu_", HEX, 64), ("AKCp", ALNUM, 69), ("PMAK-", HEX, 59),
    ("pul-", HEX, 40), ("ATATT3", ALNUM, 180), ("ATCTT3", ALNUM, 180), ("lin_api_", ALNUM, 40), ("ntn_", ALNUM, 46),
    ("figd_", ALNUM, 40), ("hf_", ALNUM, 34), ("hf_oauth_", ALNUM, 40), ("hf_jwt_", ALNUM, 40), ("api_org_", LOWER + UPPER, 34),
    ("wandb_v1_", ALNUM, 60), ("sk-ant-api03-", ALNUM, 93), ("sk-proj-", ALNUM, 48), ("sk-svcacct-", ALNUM, 48), ("sk-admin-", ALNUM, 48),
    ("sk-", ALNUM, 48), ("sk-or-v1-", HEX, 64), ("sk-lf-", HEX, 36), ("gsk_", ALNUM, 52), ("xai-", ALNUM, 80), ("r8_", ALNUM, 37),
    ("pplx-", ALNUM, 48), ("nvapi-", ALNUM, 64), ("csk-", ALNUM, 48), ("pcsk_", ALNUM, 64), ("jina_", ALNUM, 60), ("tvly-", ALNUM, 32),
    ("rpa_", ALNUM, 42), ("fw_", ALNUM, 24), ("lsv2_pt_", HEX, 42), ("lsv2_sk_", HEX, 42), ("dapi", HEX, 32), ("dt0c01.", BASE32, 24),
    ("pnu_", ALNUM, 36), ("rf_", ALNUM, 28), ("xoxa-", ALNUM, 40), ("xoxb-", DIGITS, 36), ("xoxp-", DIGITS, 50), ("xoxr-", ALNUM, 40),
    ("xoxs-", ALNUM, 40), ("xoxe-", ALNUM, 146), ("xoxe.xoxp-", ALNUM, 160), ("xapp-1-", ALNUM, 60), ("xkeysib-", HEX, 64), ("xsmtpsib-", HEX, 64),
    ("key-", HEX, 32), ("SK", HEX, 32), ("oauth:", LOWER + DIGITS, 30), ("tfp_", ALNUM, 59), ("sk_live_", ALNUM, 24), ("sk_test_", ALNUM, 24),
    ("rk_live_", ALNUM, 24), ("rk_test_", ALNUM, 24), ("whsec_", ALNUM, 32), ("shpat_", HEX, 32), ("shpca_", HEX, 32), ("shppa_", HEX, 32),
    ("shpss_", HEX, 32), ("sq0atp-", ALNUM, 22), ("sq0csp-", ALNUM, 43), ("FLWSECK_TEST-", ALNUM, 32), ("EZAK", ALNUM, 54), ("EZTK", ALNUM, 54),
    ("shippo_live_", HEX, 40), ("duffel_live_", ALNUM, 43), ("duffel_test_", ALNUM, 43), ("hvs.", ALNUM, 90), ("hvb.", ALNUM, 140),
    ("hvr.", ALNUM, 90), ("ops_eyJ", ALNUM, 250), ("AGE-SECRET-KEY-1", BASE32, 58), ("glc_", ALNUM, 60), ("glsa_", ALNUM, 41),
    ("NRAK-", BASE32, 27), ("NRJS-", HEX, 19), ("CFPAT-", ALNUM, 43), ("p8e-", LOWER + DIGITS, 32), ("NRII-", ALNUM, 32),
    ("dp.st.", ALNUM, 43), ("ocid1.credential.", ALNUM, 40), ("ABSK", ALNUM, 120), ("1//0", ALNUM, 60), ("AQVN", ALNUM, 36),
    ("YC", ALNUM, 38), ("tk-us-", ALNUM, 48), ("ico-", ALNUM, 32), ("dnkey-", LOWER + DIGITS, 26), ("sha256~", ALNUM, 43),
    ("sb_secret_", ALNUM, 32), ("4b1d", ALNUM, 38), ("glffct-", ALNUM, 20), ("glwt-", ALNUM, 20), ("lin_oauth_", HEX, 64),
    ("rdme_", LOWER + DIGITS, 70), ("API-", BASE32, 26), ("cmVmd", ALNUM, 59), ("secret_", ALNUM, 43), ("fio-u-", LOWER + DIGITS, 64),
    ("sm_aat_", ALNUM, 16), ("sm_pat_", ALNUM, 16), ("sm_sat_", ALNUM, 16), ("polar_oat_", ALNUM, 43), ("tgp_v1_", ALNUM, 43),
    ("KGAT_", HEX, 32), ("EAACEdEose0cBA", ALNUM, 100), ("EAAM", ALNUM, 120), ("EAAC", ALNUM, 120), ("EAAA", ALNUM, 60),
    ("xoxe.xoxb-", ALNUM, 160), ("shippo_test_", HEX, 40),
]  # fmt: skip
# With the secret between the two.
FORMS = [
    ("eyJhbGciOiJIUzI1NiJ9.", of(ALNUM, 40), "." + of(ALNUM, 43)), ("postgres://me:", of(ALNUM, 12), "@db/x"),
    ("redis://:", of(LOWER, 9), "@cache:6379/0"), ("amqps://job:", of(ALNUM, 20), "@queue/"), ("https://", of(HEX, 40), "@host/x.git"),
    ("Authorization: Bearer ", of(ALNUM, 30), ""), ("authorization: bearer ", of(ALNUM, 30), ""), ("Authorization: Basic ", of(ALNUM, 24), "=="),
    ("https://hooks.slack.com/services/", "T" + of(BASE32, 8) + "/B" + of(BASE32, 8) + "/" + of(ALNUM, 24), ""),
    ("https://discord.com/api/webhooks/", of(DIGITS, 18) + "/" + of(ALNUM, 68), ""),
    ("https://x.webhook.office.com/webhookb2/", of(HEX, 32) + "@" + of(HEX, 32), ""),
    ("https://chat.googleapis.com/v1/", "spaces/" + of(ALNUM, 11) + "/messages", ""),
    ("bot ", of(DIGITS, 10) + ":AA" + of(ALNUM, 33), ""), ("discord ", "MT" + of(ALNUM, 24) + "." + of(ALNUM, 6) + "." + of(ALNUM, 38), ""),
    ("azure ", "aB1" + "8Q~" + of(ALNUM, 34), ""), ("AccountName=x;AccountKey=", of(ALNUM, 86), "==;"),
    ("Endpoint=sb://x/;SharedAccessKey=", of(ALNUM, 43), "="), ("mailchimp ", of(HEX, 32), "-us12"), ("airtable ", "pat" + of(ALNUM, 14) + "." + of(HEX, 64), ""),
    ("terraform ", of(ALNUM, 14) + ".atlasv1." + of(ALNUM, 60), ""), ("mail ", "SG." + of(ALNUM, 22) + "." + of(ALNUM, 43), ""),
    ("https://x.blob.core.windows.net/c?sv=2022&sig=", of(ALNUM, 43), "&se=1"), ("https://s3/x?X-Amz-Signature=", of(HEX, 64), ""),
    ("https://s3/x?X-Amz-Security-Token=", of(ALNUM, 100), "&x=1"), ("https://host/x?access_token=", of(ALNUM, 12), "&page=2"),
    ("https://host/x?api_key=", of(ALNUM, 12), ""), ("https://host/x?password=", of(LOWER, 7), ""),
    ("origin ", "v1.0-" + of(HEX, 24) + "-" + of(HEX, 146), ""), ("langfuse ", "pk-lf-" + of(HEX, 8) + "-" + "-".join(of(HEX, 4, n) for n in range(3)) + "-" + of(HEX, 12), ""),
    ("plaid ", "access-production-" + of(HEX, 8) + "-" + "-".join(of(HEX, 4, n) for n in range(3)) + "-" + of(HEX, 12), ""),
    ("plaid ", "access-sandbox-" + of(HEX, 8) + "-" + "-".join(of(HEX, 4, n) for n in range(3)) + "-" + of(HEX, 12), ""),
    ("resend ", "re_" + of(ALNUM, 8) + "_" + of(ALNUM, 24), ""), ("mapbox ", "sk.eyJ" + of(ALNUM, 57) + "." + of(ALNUM, 22), ""),
    ("mapbox ", "pk.eyJ" + of(ALNUM, 57) + "." + of(ALNUM, 22), ""), ("yandex ", "t1." + of(ALNUM, 40) + "." + of(ALNUM, 86), ""),
    ("harness ", "pat." + of(ALNUM, 22) + "." + of(ALNUM, 24) + "." + of(ALNUM, 20), ""),
    ("harness ", "sat." + of(ALNUM, 22) + "." + of(ALNUM, 24) + "." + of(ALNUM, 20), ""),
    ("maxmind ", of(ALNUM, 6) + "_" + of(ALNUM, 29) + "_mmk", ""), ("cookie _gitlab_session=", of(HEX, 32), ";"),
    ("1password ", "A3-" + of(BASE32, 6) + "-" + of(BASE32, 11) + "".join("-" + of(BASE32, 5, n) for n in range(3)), ""),
    ("1password ", "A3-" + of(BASE32, 6) + "-" + of(BASE32, 6, 1) + "".join("-" + of(BASE32, 5, n) for n in range(4)), ""),
    ("https://x.logic.azure.com/workflows/1/triggers/", "manual/paths/invoke?sv=1.0&sig=" + of(ALNUM, 43), ""),
    ("Endpoint=https://x;SharedSecretValue=", of(ALNUM, 44), "="),
]  # fmt: skip
NAMES = [
    "PASSWORD", "DB_PASSWORD", "password", "passwd", "MYSQL_PWD", "PGPASSWORD", "PGPASS", "DB_PASS", "api-pass", "smtp_pass", "SSH_PASSPHRASE",
    "KEY_PASSPHRASE", "gpg-passphrase", "SECRET", "CLIENT_SECRET", "client-secret", "clientSecret", "AWS_SECRET_ACCESS_KEY", "SECRET_KEY_BASE",
    "DJANGO_SECRET_KEY", "TOKEN", "HF_TOKEN", "GITHUB_TOKEN", "auth-token", "authToken", "ACCESS_TOKEN", "refresh_token", "SLACK_BOT_TOKEN",
    "NPM_TOKEN", "CI_JOB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "api_key", "api-key", "apiKey", "apikey", "COMET_API_KEY",
    "NEPTUNE_API_TOKEN", "AWS_ACCESS_KEY", "ACCESS_KEY", "private_key", "PRIVATE_KEY", "SSH_PRIVATE_KEY", "signing-key", "ENCRYPTION_KEY",
    "STORAGE_ACCOUNT_KEY", "LICENSE_KEY", "MASTER_KEY", "master.key", "CREDENTIALS", "AWS_CREDENTIALS", "GIT_CREDENTIAL", "db-creds", "AUTH",
    "REDISCLI_AUTH", "BASIC_AUTH", "AUTHORIZATION", "HTTP_AUTHORIZATION", "OAUTH_CODE", "COOKIE", "SESSION_COOKIE", "cookie_value", "SENTRY_DSN",
    "dsn", "DATABASE_DSN", "SLACK_WEBHOOK", "webhook", "ALERT_WEBHOOK_URL", "USER_PIN", "card-pin", "JWT", "ID_JWT", "SAS", "BLOB_SAS", "GITLAB_PAT",
]  # fmt: skip
VALUES = [
    "/wJalrXUtnFEMI",
    "86753099",
    "letmeinplease",
    "~tilde.first",
    "two words",
    "./relative+base64",
    "correct-horse",
]
HARMLESS_NAMES = [
    "tokens", "max_tokens", "num_tokens", "max-new-tokens", "TOKENIZERS_PARALLELISM", "tokenizer", "tokenizer_name", "pad_token", "eos_token_id",
    "bos-token", "mask_token", "token_dim", "token_count", "tokens_per_batch", "key", "KEY", "key_padding", "key_padding_mask", "keyboard",
    "MASTER_KEYWORD", "monkey", "sort_key", "sort-key", "primary_key", "group_key", "label-key", "dataset_key", "image_key", "state_dict_keys",
    "missing_keys", "public_key", "SSH_KEY_PATH", "PATH_TO_KEY", "key_file", "KEY_COUNT", "KEY_DIR", "forward_pass", "backward_pass", "num_pass",
    "passes", "bypass", "passthrough", "compass", "pin_memory", "pin-memory-device", "pinned", "spin", "private_data", "author", "authors",
    "AUTHOR_EMAIL", "patience", "pattern", "path", "PATH", "hidden_dim", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "monitor_key", "metric-key",
    "cache_key", "batch_keys", "SSH_AUTH_SOCK", "token_type", "token_drop_rate", "query_key_norm", "token_embedding_size", "hostname",
]  # fmt: skip
HARMLESS = [
    "torch.nn.modules.linear.Linear", "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "hf_trainer/hf_accelerate.py",
    "hf_rank0_evaluate.py", "npm_packages.json", "sk-1 task-scheduler-42", "sk-learn-pipelines", "gloo://10.0.0.1:29500", "https://host:8080/x?page=2#top",
    "https://huggingface.co/meta/llama", "DistributedDataParallel", "_engine_run_backward", "ProcessGroupNCCL.cpp:607", "all_reduce #10",
    "collective_order_mismatch_background_save", "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=16)", "2026-03-01T03:04:05.123456+00:00",
    "blocks.0.mlp.fc1.weight", "model.layers.31.self_attn.q_proj.weight", "layer_norm_backward_kernel", "CUDA_VISIBLE_DEVICES=0,1,2,3",
    "NCCL_SOCKET_IFNAME=eth0", "rank 1 never reached all_reduce #10; rank 0 is waiting in it", "step 1000: loss 2.3456 lr 1.5e-4",
    "GPU-5c1f0b7e-8a2d-4d43-9a2b-0123456789ab", "device 0000:3b:00.0", "commit 0123456789abcdef0123456789abcdef01234567",
    "torch 2.13.0+cu130 git 0123456789abcdef0123456789abcdef01234567", "sha256:" + of(HEX, 64), "signature 0f9e8d7c6b5a", "0x00007f1a40a5a740",
    "train.py:52 in train_one_epoch", "python -m torch.distributed.run --nproc-per-node 2 train.py", "--learning-rate 0.0003 --weight-decay 0.1",
    "checkpoints/step_000100/rank_00000.pt", "artifacts/20260301-030405-train", "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
    "tokens = tokenizer(text)", "key = query @ value", "password = getpass()", "token = os.environ['TOKEN']", "auth=None",
    "train.py --token-file /run/token --tokens 4096 --pass-through --key-cache int8",
]  # fmt: skip


@pytest.mark.parametrize(("prefix", "letters", "length"), TOKENS)
def test_a_published_form_of_token_is_masked_wherever_it_stands(
    prefix: str, letters: str, length: int
) -> None:
    secret = prefix + of(letters, length)
    for text in (
        f"cannot log in with {secret}",
        f"x={secret}&",
        f"'{secret}'",
        f"({secret})",
        f"see {secret}, please",
    ):
        assert of(letters, length) not in mask_text(text), text
        assert MASK in mask_text(text)


@pytest.mark.parametrize(("before", "secret", "after"), FORMS)
def test_a_secret_is_masked_by_what_stands_around_it(before: str, secret: str, after: str) -> None:
    text = f"{before}{secret}{after} and on"
    assert secret not in mask_text(text)
    assert json.loads(mask_text(json.dumps({"text": text})))["text"].endswith(" and on")


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("newline", ["\n", "\\n", "\r\n"])
def test_a_private_key_is_masked_with_all_its_lines(kind: str, newline: str) -> None:
    lines = [of(ALNUM, 64, n) for n in range(4)]
    text = newline.join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"])
    for shown in (mask_text(f"key: {text} and on"), json.loads(mask_text(json.dumps(f"key: {text} and on")))):
        assert not any(line in shown for line in lines)
        assert shown.endswith(" and on")
    assert not any(line in mask_text(text[:150]) for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_secret_by_its_name_whatever_it_looks_like(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in VALUES:
        assert value in secret_values({name: value}, [])
        assert mask_command(["python", f"--{name}={value}", f"--{name}", value, "go"])[1:] == [
            f"--{name}={MASK}",
            f"--{name}",
            MASK,
            "go",
        ]
        assert mask_variables({name: value}) == {name: MASK}
        monkeypatch.setenv(name, value)
        assert mask_text(f"cannot log in with {value}.") == f"cannot log in with {MASK}."
        document = {"text": f"with {value} ", "number": 86753099, "numbers": [86753099, 1, 86753099]}
        for written in (
            json.dumps(document),
            json.dumps(document, indent=1),
            json.dumps(document, separators=(",", ":")),
        ):
            assert json.loads(mask_text(written)) == document | {"text": f"with {MASK} "}


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_name_that_only_sounds_like_a_secret_is_none(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_command(["python", f"--{name}", "512", f"{name}=letmein"]) == [
        "python",
        f"--{name}",
        "512",
        f"{name}=letmein",
    ]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays_even_in_what_is_made_for_pasting(text: str) -> None:
    assert mask_text(text) == text
    assert mask_likely(text) == text


def test_a_value_that_says_where_a_secret_lies_or_is_short_stays(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    assert (
        secret_values({"CLIENT_SECRET": str(key), "SHORT_TOKEN": "abcde"}, ["x", "--private-key", str(key)])
        == ()
    )


def test_each_line_of_a_secret_of_several_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [of(ALNUM, 64, n) for n in range(3)]
    monkeypatch.setenv("TLS_KEY", "\n".join(lines))
    assert mask_text(f"first {lines[1]}") == f"first {MASK}"


@pytest.mark.parametrize(
    "secret",
    [of(ALNUM + "+/", 40, n) for n in (1, 2, 3, 4)]
    + [of(ALNUM, 32, n) for n in (1, 2, 3, 4)]
    + [of(HEX, n) for n in (32, 40, 64)],
)
def test_what_looks_random_is_masked_in_what_is_made_for_pasting_alone(secret: str) -> None:
    assert mask_text(f"with {secret}") == f"with {secret}"
    assert mask_likely(f"with {secret}") == f"with {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "password='hunter22'",
        'api_key="abcdefgh"',
        "API_KEY=letmein1",
        "RuntimeError: API_KEY=letmein1 refused",
        '"client_secret": "letmein1"',
        "db_pass = 'x1y2z3w'",
        "train.py --api-pass letmein1",
        "train.py --password=letmein1 --epochs 3",
        "train.py --db-password 'letmein1'",
        "OperationalError: cannot log in (user=train password=letmeinplease) at db",
        "password=letmeinplease.",
        "db_password=letmeinplease&x=1",
        "refused: api_key=letmeinplease, retry",
    ],
)
def test_what_is_assigned_to_a_secret_name_is_masked_in_what_is_made_for_pasting(text: str) -> None:
    assert MASK in mask_likely(text)
    assert not any(secret in mask_likely(text) for secret in ("hunter22", "abcdefgh", "letmein", "x1y2z3w"))


@pytest.mark.parametrize(
    "text",
    [
        "connect(user=user, password=password)",
        "connect(user=user, password=args.password)",
        "connect(password=read_password(file))",
        "connect(password=passwords[0])",
        "login(secret=None, api_key=HF_TOKEN)",
        "password=required for user train",
        "bad token=encoder at 5, next_token=decoder",
        "password: incorrect, secret: unknown",
    ],
)
def test_what_stands_for_a_password_stays(text: str) -> None:
    assert mask_likely(text) == text


def test_the_table_is_as_long_as_it_is_said_to_be() -> None:
    assert len({prefix for prefix, _, _ in TOKENS}) == len(TOKENS)
    assert len(TOKENS) + len(FORMS) + 15 >= 200
    assert len(NAMES) >= 75
    assert len(HARMLESS_NAMES) + len(HARMLESS) >= 100


def test_a_line_of_assignments_without_an_end_is_read() -> None:
    text = "settings=" * 30_000 + "last"
    assert mask_likely(text) == text
    assert mask_likely("settings=" * 5_000 + "api_key='0123456789'").endswith("api_key='***'")


def test_the_name_of_a_secret_is_found_at_the_end_of_a_word_of_any_length() -> None:
    assert mask_likely("x" * 5_000 + "_token='0123456789'").endswith("_token='***'")


def test_a_long_number_takes_about_as_long_as_other_text() -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        mask_likely(text)
        return time.process_time() - began

    number, words = "7" * 200_000, "one two " * 25_000
    pairs = [(seconds(number), seconds(words)) for _ in range(5)]
    assert min(n for n, _ in pairs) < 10 * min(w for _, w in pairs)
