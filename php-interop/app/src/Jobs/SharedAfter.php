<?php

namespace App\Jobs;

use App\Values\Node;

/** After the properties that a chain step replaces, refers to values before, in and after them. */
class SharedAfter extends NoSerializesModels
{
    public $before;

    public $in;

    public $element;

    public $again;

    public $cycle;

    public $number;

    public function __construct()
    {
        $this->nothing = 'not null';
        $this->order = new Node('before');
        $this->before = $this->order;
        $this->chainCatchCallbacks = [$node = new Node('in'), $string = 'text'];
        $node->extra = [$node, $this->order];
        $this->in = [$node, 'again' => $node];
        $this->chained = ['x', &$string];
        $this->element = &$string;
        $this->again = ['element' => &$string, 'in' => $node];
        $this->cycle = new Node('behind');
        $this->cycle->next = $this->cycle;
        $this->cycle->extra = [$this->cycle, &$this->number];
        $this->number = 5;
    }
}
