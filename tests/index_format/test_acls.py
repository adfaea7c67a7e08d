from index_format.objects import Acl, AclsOfTopics


def acl(pattern: str, name: str, principal: str = "User:a") -> Acl:
    return Acl(pattern, name, principal, "*", "READ", "ALLOW")


def test_what_concerns_a_topic() -> None:
    named, begun, everything, all_topics = (
        acl("LITERAL", "orders"),
        acl("PREFIXED", "ord"),
        acl("PREFIXED", ""),
        acl("LITERAL", "*"),
    )
    others = [acl("LITERAL", "ord"), acl("PREFIXED", "orders-"), acl("PREFIXED", "*"), acl("LITERAL", "users")]
    acls = AclsOfTopics([named, begun, everything, all_topics, named, *others])
    assert acls.concerning("orders") == (all_topics, named, everything, begun)
    assert acls.concerning("ord") == (all_topics, acl("LITERAL", "ord"), everything, begun)
    assert acls.concerning("*") == (all_topics, everything, acl("PREFIXED", "*"))
    assert AclsOfTopics([]).concerning("orders") == ()


def test_their_order_is_that_of_the_fields() -> None:
    acls = [acl("LITERAL", "orders", principal) for principal in ("User:b", "User:a")]
    assert [each.principal for each in AclsOfTopics(acls).concerning("orders")] == ["User:a", "User:b"]
