import pickle

import pytest

from index_format.errors import MASK, BlockgzError, CorruptBlock, masked_urls


@pytest.mark.parametrize("error", [BlockgzError("what", why="why", remedy="remedy"), CorruptBlock("what")])
def test_errors_travel_between_processes(error: BlockgzError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@proxy:3128", "http://********@proxy:3128"),
        ("'https://TOKEN@host/a', s3://b/c", "'https://********@host/a', s3://b/c"),
        ("http://user:p@ss/word@host/x", "http://********@host/x"),
        ('{"a":"http://x","b":"u:p@v"}', '{"a":"http://x","b":"u:p@v"}'),
        ("http://host:9000/a?b=c@d", "http://host:9000/a?b=c@d"),
        (
            "https://b/k?X-Amz-Signature=12ab&x=1&X-Amz-Security-Token=q",
            f"https://b/k?X-Amz-Signature={MASK}&x=1&X-Amz-Security-Token={MASK}",
        ),
        ("/k?access_token=abc, then", f"/k?access_token={MASK} then"),
        ("mail a:b@c, at 12:30, a=b", "mail a:b@c, at 12:30, a=b"),
    ],
)
def test_urls_are_masked(text: str, shown: str) -> None:
    assert masked_urls(text) == shown
    error = BlockgzError(text, why=text, remedy=text)
    assert (str(error), error.what, error.why, error.remedy) == (shown,) * 4
