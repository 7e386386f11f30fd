<?php

namespace App\Values;

final class Node
{
    public ?self $next = null;

    public mixed $extra = null;

    public function __construct(public string $name) {}
}
