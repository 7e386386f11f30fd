<?php

/** Classes PHP serializes natively, or by `__sleep` and `__serialize`. */

class Emp
{
}

class P
{
    public $pub = 1;
    protected $pro = 'x';
    private $pri = null;
}

/** A private property of the same name as its parent's. */
class C2 extends P
{
    private $pri = 5;
    public $own = true;
}

/** Inherits a private property that collides with nothing. */
class C3 extends P
{
    protected $more = 1.5;
}

/** Two ancestors have a private `$secret`, the class itself has none. */
class Gp
{
    private $secret = 'grandparent';
}

class Pa extends Gp
{
    private $secret = 'parent';
}

class Ch extends Pa
{
    public $open = 1;
}

/** `$a` stays uninitialised unless code sets it. */
class Typed
{
    public int $a;
    public ?string $b = null;
    public int $c = 3;
}

class Ty
{
    public int $a;
    public int $b = 1;
}

class Sl
{
    public $a = 1;
    protected $b = 2;
    private $c = 3;
    public $skipped = 4;

    public function __sleep(): array
    {
        return ['a', 'b', 'c'];
    }
}

/** Writes exactly the pairs it was given. */
class Ser74
{
    public function __construct(private array $data = ['k' => 1, 0 => 'zero', 'n' => null])
    {
    }

    public function __serialize(): array
    {
        return $this->data;
    }

    public function __unserialize(array $data): void
    {
        $this->data = $data;
    }
}

class SerR
{
    public function __construct(private $o = null, private $p = null)
    {
    }

    public function __serialize(): array
    {
        return ['o' => $this->o, 'p' => $this->p];
    }

    public function __unserialize(array $data): void
    {
        [$this->o, $this->p] = [$data['o'] ?? null, $data['p'] ?? null];
    }
}

/** Holds a serialize() string that was made while the object itself was being serialized. */
class StrSer
{
    public function __construct(private $inner = null)
    {
    }

    public function __serialize(): array
    {
        return ['inner' => serialize($this->inner)];
    }

    public function __unserialize(array $data): void
    {
        $this->inner = unserialize($data['inner']);
    }
}

class Node
{
    public $next;
    public $v;

    public function __construct($v = null)
    {
        $this->v = $v;
    }
}

#[AllowDynamicProperties]
class Dyn
{
    public $declared = 0;
    protected $hidden = [];
}

enum Suit: string
{
    const Wild = 'not a case';

    case Hearts = 'H';
    case Spades = 'S';
}

enum Unit
{
    case A;
    case B;
}
