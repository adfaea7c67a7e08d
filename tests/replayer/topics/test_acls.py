from index_format.identity import Acl
from replayer.topics import acl_text, compare_acls, literal_acls


def acl(name: str, principal: str = "User:a", pattern: str = "LITERAL", permission: str = "ALLOW") -> Acl:
    return Acl(pattern, name, principal, "*", "READ", permission)


def test_acls_on_the_new_name_alone_each_once() -> None:
    given = [acl("orders"), acl("ord", pattern="PREFIXED"), acl("*"), acl("*", "User:b", permission="DENY")]
    assert literal_acls(given, "copy") == (acl("copy"), acl("copy", "User:b", permission="DENY"))
    assert literal_acls([], "copy") == ()


def test_what_they_grant_is_compared_by_whatever_pattern() -> None:
    archived = [acl("*"), acl("orders", "User:b")]
    live = [acl("ord", pattern="PREFIXED"), acl("orders", "User:c")]
    found = compare_acls("orders", archived, live)
    assert found == ((acl("orders", "User:b"),), (acl("orders", "User:c"),))
    assert compare_acls("orders", None, live) == (None, ())


def test_text_for_people() -> None:
    assert acl_text(acl("orders")) == "ALLOW READ for User:a from *"
    assert "\x1b" not in acl_text(acl("orders", "User:\x1b[31m"))
