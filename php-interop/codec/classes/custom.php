<?php

/** Classes with the `Serializable` interface: PHP writes `C:`. */

/**
 * The bodies the last serialize() call wrote. A body may hold `r:` into the string around it, so it cannot be had
 * again by calling the object's serialize() alone.
 */
final class Bodies
{
    /** @var array<int, string> by object id */
    public static array $of = [];

    public static function note(object $object, string $body): string
    {
        return self::$of[spl_object_id($object)] = $body;
    }
}

/** The body is any bytes. */
class OldSer implements Serializable
{
    public function __construct(private string $body = 'hi')
    {
    }

    public function serialize()
    {
        return Bodies::note($this, $this->body);
    }

    public function unserialize($body)
    {
        $this->body = $body;
    }
}

class FlatSer extends OldSer
{
    public function __construct(string $body = 'zz')
    {
        parent::__construct($body);
    }
}

class Flat extends FlatSer
{
}

/** The body is a nested serialize(): it takes part in the outer numbering. */
class NestSer implements Serializable
{
    public function __construct(private $a = 1, private $b = 2)
    {
    }

    public function serialize()
    {
        return Bodies::note($this, serialize([$this->a, $this->b]));
    }

    public function unserialize($body)
    {
        [$this->a, $this->b] = unserialize($body);
    }
}
